// The difference between a facility's clock and this machine's, from the answers of its queue.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "xffl/base/clock.h"

namespace xffl::submit {

/// Seconds: the facility's clock minus this machine's, and the largest error of this difference.
struct ClockOffset {
  double offset = 0;
  double error = 0;
  bool operator==(const ClockOffset&) const = default;
};

/// The best of the last samples: the one with the shortest round trip, as the clock filter of NTP
/// chooses (RFC 5905, section 10). Thread-safe.
class ClockFilter {
 public:
  /// The facility's clock showed `seconds` since 1970, in whole seconds, at some moment between
  /// `before` and `after` by this machine's clock. Ignores a sample with `after` before `before`:
  /// this machine's clock was set meanwhile.
  void add(int64_t seconds, Clock::UtcTime before, Clock::UtcTime after);
  /// Absent before the first sample.
  std::optional<ClockOffset> best() const;

 private:
  mutable std::mutex mutex_;
  std::deque<ClockOffset> last_;
};

}  // namespace xffl::submit
