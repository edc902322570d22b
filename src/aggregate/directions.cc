#include "directions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "xffl/kernels/cpu/mean.h"

namespace xffl::aggregate {

namespace {

// A sum of the others that is shorter, relative to its terms, is the rounding of the measurement.
constexpr double kShortest = 1e-4;

}  // namespace

Directions::Directions(const Sources& updates)
    : updates_(updates), sums_(2 * updates.size() + 1, 0.0) {}

void Directions::measure(const Sources::Reader& reader, uint64_t offset,
                         std::span<const double> mean, std::span<double> sums) const {
  std::array<float, kMaxPiece> mean_values, update_values;
  const std::span<float> m(mean_values.data(), mean.size());
  const std::span<float> d(update_values.data(), mean.size());
  kernels::round_to_nearest(mean, m);
  for (size_t i = 0; i < updates_.size(); ++i) {
    reader.load(i, offset, d);
    sums[2 * i] += dot(d, m);
    sums[2 * i + 1] += dot(d, d);
  }
  sums.back() += dot(m, m);
}

void Directions::add(std::span<const double> sums) {
  std::transform(sums.begin(), sums.end(), sums_.begin(), sums_.begin(), std::plus<>());
}

std::vector<double> Directions::cosines() const {
  std::vector<double> cosines;
  const double total = updates_.total_weight();
  for (size_t i = 0; i < updates_.size(); ++i) {
    const double share = updates_.input(i).weight / total;
    const double with_mean = sums_[2 * i], own = sums_[2 * i + 1], of_mean = sums_.back();
    // The others' part of the mean is m - share * d.
    const double product = with_mean - share * own;
    const double others = of_mean - 2 * share * with_mean + share * share * own;
    const bool has_direction = others > kShortest * kShortest * (of_mean + share * share * own);
    const double cosine = has_direction ? product / std::sqrt(own * others) : 0;
    cosines.push_back(std::isfinite(cosine) ? std::clamp(cosine, -1.0, 1.0) : 0);
  }
  return cosines;
}

}  // namespace xffl::aggregate
