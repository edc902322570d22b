#include "xffl/kernels/cpu/mean.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/target_clones.h"

namespace xffl::kernels {

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void start_sum(std::span<const float> x, double weight, std::span<double> sum) {
  const float* from = x.data();
  double* to = sum.data();
  for (size_t i = 0, n = sum.size(); i < n; ++i) to[i] = weight * static_cast<double>(from[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void add_to_sum(std::span<const float> x, double weight, std::span<double> sum) {
  const float* from = x.data();
  double* to = sum.data();
  for (size_t i = 0, n = sum.size(); i < n; ++i) to[i] += weight * static_cast<double>(from[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void divide(std::span<double> sum, double total) {
  double* to = sum.data();
  for (size_t i = 0, n = sum.size(); i < n; ++i) to[i] /= total;
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void add(std::span<const float> x, std::span<double> sum) {
  const float* from = x.data();
  double* to = sum.data();
  for (size_t i = 0, n = sum.size(); i < n; ++i) to[i] += static_cast<double>(from[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void round_to_nearest(std::span<const double> from, std::span<float> to) {
  const double* wide = from.data();
  float* narrow = to.data();
  for (size_t i = 0, n = from.size(); i < n; ++i) narrow[i] = static_cast<float>(wide[i]);
}

XFFL_TARGET_CLONES("avx512f", "avx2", "default")
void round_to_odd(std::span<const double> from, std::span<float> to) {
  const double* wide = from.data();
  float* narrow = to.data();
  for (size_t i = 0, n = from.size(); i < n; ++i) {
    const float nearest = static_cast<float>(wide[i]);
    const double back = static_cast<double>(nearest);
    const uint32_t away = std::fabs(back) > std::fabs(wide[i]) ? 1 : 0;
    const uint32_t inexact = back != wide[i] ? 1 : 0;
    narrow[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(nearest) - away) | inexact);
  }
}

}  // namespace xffl::kernels
