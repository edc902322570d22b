// How long a vector of numbers is: sums of squares, in float32 within a piece and float64 beyond.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>

#include "xffl/checkpoint/dtype.h"

namespace xffl::aggregate {

/// Of the elements of `bytes`, of kF32, kF16 or kBF16. Infinite when they are too large to be
/// squared (about 1e18), which no model's are.
double sum_of_squares(std::span<const std::byte> bytes, checkpoint::Dtype dtype);
/// Of the elements of `bytes` minus those of `from`, which has as many.
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
