#include "xffl/submit/clock_offset.h"

#include <algorithm>
#include <chrono>

namespace xffl::submit {

namespace {
constexpr size_t kSamples = 9;
}  // namespace

void ClockFilter::add(int64_t seconds, Clock::UtcTime before, Clock::UtcTime after) {
  using Seconds = std::chrono::duration<double>;
  const double round_trip = Seconds(after - before).count();
  if (round_trip < 0) return;
  // A clock that shows whole seconds lags by half a second on average, and by at most one.
  const double here = Seconds(before.time_since_epoch()).count() + round_trip / 2;
  const std::lock_guard lock(mutex_);
  last_.push_back(
      {.offset = static_cast<double>(seconds) + 0.5 - here, .error = round_trip / 2 + 0.5});
  if (last_.size() > kSamples) last_.pop_front();
}

std::optional<ClockOffset> ClockFilter::best() const {
  const std::lock_guard lock(mutex_);
  const auto best = std::min_element(
      last_.begin(), last_.end(),
      [](const ClockOffset& a, const ClockOffset& b) { return a.error < b.error; });
  return best == last_.end() ? std::nullopt : std::optional(*best);
}

}  // namespace xffl::submit
