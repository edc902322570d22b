#include <cmath>

#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

namespace {
constexpr double kLongestSeconds = 1e9;
}

void RateMeter::add(Time now, const Progress& progress) {
  const auto seconds_of = [](Time time) { return std::chrono::duration<double>(time).count(); };
  if (last_ && now > *last_) {
    const double elapsed = seconds_of(now - *last_);
    const double keep = std::exp(-elapsed / seconds_of(fade_));
    // The weight of the interval's own bytes decays within the interval, too.
    const double weight = (1 - keep) * seconds_of(fade_) / elapsed;
    const uint64_t moved = progress.moved_bytes > progress_.moved_bytes
                               ? progress.moved_bytes - progress_.moved_bytes
                               : 0;
    seconds_ = seconds_ * keep + elapsed * weight;
    bytes_ = bytes_ * keep + static_cast<double>(moved) * weight;
  } else if (last_) {
    return;  // the next call counts these bytes
  }
  last_ = now;
  progress_ = progress;
}

double RateMeter::bytes_per_second() const { return seconds_ > 0 ? bytes_ / seconds_ : 0; }

std::optional<std::chrono::seconds> RateMeter::time_left() const {
  if (progress_.done_bytes >= progress_.total_bytes && progress_.total_bytes > 0)
    return std::chrono::seconds(0);
  const double rate = bytes_per_second();
  const double left = static_cast<double>(progress_.total_bytes - progress_.done_bytes);
  if (rate <= 0 || left / rate > kLongestSeconds) return std::nullopt;
  return std::chrono::seconds(static_cast<int64_t>(std::ceil(left / rate)));
}

}  // namespace xffl::transfer
