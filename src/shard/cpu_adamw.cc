// How it works: plain loops that the compiler makes vectors of, once for each instruction set; the
// program takes the best when it starts. No torch header.
#include "cpu_adamw.h"

#include <bit>
#include <cmath>

namespace xffl::shard {
namespace {

#ifdef __x86_64__
#define XFFL_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define XFFL_CLONES
#endif

constexpr int64_t kBlock = 256;  // elements that stay in a core's first cache between two loops

// To nearest, ties to even. A master that is not finite has ended the job before.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

XFFL_CLONES void adamw_on_cpu(const AdamwBuffers& buffers, int64_t begin, int64_t end,
                              const AdamwFactors& factors) {
  const AdamwFactors f = factors;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = block + kBlock < end ? block + kBlock : end;
    float* __restrict master = buffers.master;
    const float* __restrict gradient = buffers.gradient;
    float* __restrict first = buffers.first;
    float* __restrict second = buffers.second;
    for (int64_t i = block; i < stop; ++i) {
      const float g = gradient[i] * f.gradient;
      const float m = first[i] + f.first * (g - first[i]);
      const float v = second[i] * f.kept_second + f.second * g * g;
      first[i] = m;
      second[i] = v;
      const float root = std::sqrt(v) / f.root_correction + f.epsilon;
      master[i] = master[i] - f.decay * master[i] - f.step * (m / root);
    }
    if (buffers.copy_bf16 == nullptr) continue;
    uint16_t* __restrict copy = buffers.copy_bf16;
    for (int64_t i = block; i < stop; ++i) copy[i] = to_bf16(master[i]);
  }
}

}  // namespace xffl::shard
