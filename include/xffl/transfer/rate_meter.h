// The smoothed rate and the remaining time of a transfer, for display.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

/// The caller passes the time. Not thread-safe.
class RateMeter {
 public:
  using Time = std::chrono::nanoseconds;  // monotonic, from any fixed start

  /// `fade` is the time constant of the exponential average.
  explicit RateMeter(Time fade = std::chrono::seconds(8)) : fade_(fade) {}

  void add(Time now, const Progress& progress);
  /// Moved bytes per second; 0 before the second add(). Bytes that were already present do not
  /// count.
  double bytes_per_second() const;
  /// Empty while the rate is zero or unknown.
  std::optional<std::chrono::seconds> time_left() const;

 private:
  Time fade_;
  std::optional<Time> last_;
  Progress progress_;
  double seconds_ = 0;  // weighted sums; the rate is their ratio
  double bytes_ = 0;
};

}  // namespace xffl::transfer
