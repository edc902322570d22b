// Sums of squares: in float32 within a piece, in float64 over the pieces.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>

#include "xffl/checkpoint/dtype.h"

namespace xffl::aggregate {

/// The sum over the elements of `bytes` (kF32, kF16 or kBF16). Infinite when a square overflows
/// float32 (elements above about 1e18).
double sum_of_squares(std::span<const std::byte> bytes, checkpoint::Dtype dtype);
/// The same for the differences of `bytes` and `from`, which have the same number of elements.
double sum_of_squared_differences(std::span<const std::byte> bytes, checkpoint::Dtype dtype,
                                  std::span<const std::byte> from, checkpoint::Dtype from_dtype);

/// A sum that threads add to.
class SharedSum {
 public:
  void add(double value) {
    const std::lock_guard lock(mutex_);
    sum_ += value;
  }
  double sum() const { return sum_; }

 private:
  std::mutex mutex_;
  double sum_ = 0;
};

}  // namespace xffl::aggregate
