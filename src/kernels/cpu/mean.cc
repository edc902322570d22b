#include "xffl/kernels/cpu/mean.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/target_clones.h"

namespace xffl::kernels {
namespace {

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void start_loop(const float* x, double weight, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = weight * static_cast<double>(x[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void add_scaled_loop(const float* x, double weight, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += weight * static_cast<double>(x[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void divide_loop(double* sum, double total, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] /= total;
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void add_loop(const float* x, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(x[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void nearest_loop(const double* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void odd_loop(const double* from, float* to, size_t n) {
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

void round_to_nearest(std::span<const double> from, std::span<float> to) {
  nearest_loop(from.data(), to.data(), from.size());
}

void round_to_odd(std::span<const double> from, std::span<float> to) {
  odd_loop(from.data(), to.data(), from.size());
}

}  // namespace xffl::kernels
