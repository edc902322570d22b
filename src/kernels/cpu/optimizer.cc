// How it works: the compiler vectorises plain loops, once for each target. Blocks that stay in a
// core's first-level cache hold the widened values of bfloat16 buffers.
#include "xffl/kernels/cpu/optimizer.h"

#include <bit>
#include <cmath>

#include "cpu/target_clones.h"
#include "xffl/kernels/cpu/conversions.h"

namespace xffl::kernels {
namespace {

constexpr int64_t kBlock = 256;  // elements; a block stays in the first-level cache
constexpr int64_t kLanes = 32;

// Rounds to nearest, ties to even. No value is a NaN: the trainer ends a job whose masters are not
// finite.
XFFL_INLINE uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

XFFL_INLINE void widen(const uint16_t* __restrict from, float* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = bf16_to_float(from[i]);
}

XFFL_INLINE void narrow(const float* __restrict from, uint16_t* __restrict to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

// Sets the weight to the upper half of the master, plus one where the lower half rounds up. Does
// not round NaNs.
XFFL_INLINE void split(const float* __restrict master, uint16_t* __restrict weight,
                       uint16_t* __restrict remainder, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(master[i]);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    weight[i] = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16);
    remainder[i] = static_cast<uint16_t>(is_nan ? 0u : bits);
  }
}

XFFL_INLINE void join(const uint16_t* __restrict weight, const uint16_t* __restrict remainder,
                      float* __restrict master, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t low = remainder[i];
    master[i] = std::bit_cast<float>(((weight[i] - (low >> 15)) << 16) | low);
  }
}

// Returns a block in float32: the buffer itself, or a copy in `staged`.
XFFL_INLINE float* opened(const Stored& stored, int64_t begin, float* staged, int64_t count) {
  if (stored.wide != nullptr) return stored.wide + begin;
  widen(stored.bf16 + begin, staged, count);
  return staged;
}

XFFL_INLINE void closed(const Stored& stored, int64_t begin, const float* staged, int64_t count) {
  if (stored.wide == nullptr) narrow(staged, stored.bf16 + begin, count);
}

XFFL_INLINE float* open_masters(const OptimizerBuffers& buffers, int64_t begin, float* staged,
                                int64_t count) {
  if (buffers.remainder == nullptr) return opened(buffers.master, begin, staged, count);
  join(buffers.master.bf16 + begin, buffers.remainder + begin, staged, count);
  return staged;
}

XFFL_INLINE void close_masters(const OptimizerBuffers& buffers, int64_t begin, const float* master,
                               int64_t count) {
  uint16_t* rounded = buffers.master.wide != nullptr ? buffers.copy : buffers.master.bf16;
  if (rounded == nullptr) return;
  if (buffers.remainder != nullptr)
    split(master, rounded + begin, buffers.remainder + begin, count);
  else
    narrow(master, rounded + begin, count);
}

}  // namespace

XFFL_TARGET_CLONES("default", "avx2", "arch=x86-64-v4")
void adamw_on_cpu(const OptimizerBuffers& buffers, int64_t begin, int64_t end,
                  const AdamwFactors& factors) {
  const AdamwFactors f = factors;
  alignas(64) float staged[4][kBlock], coupled[kBlock];
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t count = block + kBlock < end ? kBlock : end - block;
    float* __restrict master = open_masters(buffers, block, staged[0], count);
    const float* gradient = opened(buffers.gradient, block, staged[1], count);
    float* __restrict first = opened(buffers.first, block, staged[2], count);
    float* __restrict second = opened(buffers.second, block, staged[3], count);
    float scale = f.gradient;
    if (f.coupled_decay != 0) {
      for (int64_t i = 0; i < count; ++i)
        coupled[i] = gradient[i] * f.gradient + f.coupled_decay * master[i];
      gradient = coupled;
      scale = 1;
    }
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * scale;
      const float m = first[i] + f.first * (g - first[i]);
      const float v = second[i] * f.kept_second + f.second * g * g;
      first[i] = m;
      second[i] = v;
      const float root = std::sqrt(v) / f.root_correction + f.epsilon;
      master[i] = master[i] - f.decay * master[i] - f.step * (m / root);
    }
    closed(buffers.first, block, first, count);
    closed(buffers.second, block, second, count);
    close_masters(buffers, block, master, count);
  }
}

XFFL_TARGET_CLONES("default", "avx2", "arch=x86-64-v4")
void sgd_on_cpu(const OptimizerBuffers& buffers, int64_t begin, int64_t end,
                const SgdFactors& factors) {
  const SgdFactors f = factors;
  const bool has_momentum = buffers.first.wide != nullptr || buffers.first.bf16 != nullptr;
  alignas(64) float staged[3][kBlock] = {};
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t count = block + kBlock < end ? kBlock : end - block;
    float* __restrict master = open_masters(buffers, block, staged[0], count);
    const float* __restrict gradient = opened(buffers.gradient, block, staged[1], count);
    float* __restrict velocity =
        has_momentum ? opened(buffers.first, block, staged[2], count) : staged[2];
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * f.gradient + f.decay * master[i];
      const float v = f.momentum * velocity[i] + g;
      velocity[i] = v;
      master[i] = master[i] - f.step * (f.gradient_share * g + f.buffer_share * v);
    }
    if (has_momentum) closed(buffers.first, block, velocity, count);
    close_masters(buffers, block, master, count);
  }
}

XFFL_TARGET_CLONES("default", "avx2", "arch=x86-64-v4")
void split_masters_on_cpu(const float* master, uint16_t* weight, uint16_t* remainder,
                          int64_t size) {
  split(master, weight, remainder, size);
}

XFFL_TARGET_CLONES("default", "avx2", "arch=x86-64-v4")
void join_masters_on_cpu(const uint16_t* weight, const uint16_t* remainder, float* master,
                         int64_t size) {
  join(weight, remainder, master, size);
}

XFFL_TARGET_CLONES("default", "avx2", "arch=x86-64-v4")
double square_sum_on_cpu(const uint16_t* x, int64_t size) {
  float lanes[kLanes] = {};
  const int64_t whole = size / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = bf16_to_float(x[i + lane]);
      lanes[lane] += value * value;
    }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (int64_t i = whole; i < size; ++i) {
    const auto value = static_cast<double>(bf16_to_float(x[i]));
    sum += value * value;
  }
  return sum;
}

}  // namespace xffl::kernels
