// How fast a transfer goes, for people: a smoothed rate and the time that is left.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

/// Pure: the caller brings the time. Not thread-safe.
class RateMeter {
 public:
  using Time = std::chrono::nanoseconds;  // since any fixed moment, monotonic

  /// Older rates fade with this time constant.
  explicit RateMeter(Time fade = std::chrono::seconds(8)) : fade_(fade) {}

  void add(Time now, const Progress& progress);
  /// Bytes that really move, a second; 0 until there are two moments to compare. Bytes that were
  /// found present do not count.
  double bytes_per_second() const;
  /// Empty while nothing moves, and when nothing is known.
  std::optional<std::chrono::seconds> time_left() const;

 private:
  Time fade_;
  std::optional<Time> last_;
  Progress progress_;
  double seconds_ = 0;  // faded sums: their ratio is the rate
  double bytes_ = 0;
};

}  // namespace xffl::transfer
