// How it works: float64 -> bf16 or fp16 goes through float32 by "round to odd" (Boldo and
// Melquiond, 2008): an inexact float32 is truncated towards zero and its last bit is set, which
// keeps the information for the second rounding. float32 has more than two bits more than either
// type, in its subnormals too, so the result equals that of one rounding.
#include "mean_kernels.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace xffl::aggregate {

// One body, compiled for several instruction sets. The loader selects one, before a sanitizer has
// started.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define XFFL_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define XFFL_VECTOR_CLONES
#endif

namespace {

XFFL_VECTOR_CLONES void start_loop(const float* x, double weight, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = weight * static_cast<double>(x[i]);
}

XFFL_VECTOR_CLONES void add_scaled_loop(const float* x, double weight, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += weight * static_cast<double>(x[i]);
}

XFFL_VECTOR_CLONES void divide_loop(double* sum, double total, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] /= total;
}

XFFL_VECTOR_CLONES void add_loop(const float* x, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(x[i]);
}

XFFL_VECTOR_CLONES void nearest_loop(const double* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

XFFL_VECTOR_CLONES void odd_loop(const double* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float nearest = static_cast<float>(from[i]);
    const double back = static_cast<double>(nearest);
    const uint32_t away = std::fabs(back) > std::fabs(from[i]) ? 1 : 0;
    const uint32_t inexact = back != from[i] ? 1 : 0;
    to[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(nearest) - away) | inexact);
  }
}

}  // namespace

void start_sum(std::span<const float> x, double weight, std::span<double> sum) {
  start_loop(x.data(), weight, sum.data(), sum.size());
}

void add_to_sum(std::span<const float> x, double weight, std::span<double> sum) {
  add_scaled_loop(x.data(), weight, sum.data(), sum.size());
}

void divide(std::span<double> sum, double total) { divide_loop(sum.data(), total, sum.size()); }

void add(std::span<const float> x, std::span<double> sum) {
  add_loop(x.data(), sum.data(), sum.size());
}

void round_to(std::span<const double> from, checkpoint::Dtype dtype, std::span<std::byte> to) {
  std::array<float, kMaxPiece> rounded;
  if (dtype == checkpoint::Dtype::kF32)
    nearest_loop(from.data(), rounded.data(), from.size());
  else
    odd_loop(from.data(), rounded.data(), from.size());
  checkpoint::from_float(std::span(rounded.data(), from.size()), dtype, to);
}

}  // namespace xffl::aggregate
