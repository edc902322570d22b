// A clock that advances only by sleep() and advance().
#pragma once

#include <functional>
#include <mutex>

#include "xffl/base/clock.h"

namespace xffl::test {

class FakeClock final : public Clock {
 public:
  MonotonicTime monotonic() const override {
    const std::lock_guard lock(mutex_);
    return MonotonicTime(elapsed_);
  }
  /// Starts at 2026-01-01T00:00:00Z.
  UtcTime utc() const override {
    const std::lock_guard lock(mutex_);
    return UtcTime(std::chrono::seconds(1767225600)) +
           std::chrono::duration_cast<UtcTime::duration>(elapsed_);
  }
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override {
    if (stop.stop_requested()) return false;
    advance(duration);
    if (on_sleep) on_sleep();
    return !stop.stop_requested();
  }

  void advance(std::chrono::nanoseconds duration) {
    const std::lock_guard lock(mutex_);
    elapsed_ += duration;
  }
  std::chrono::nanoseconds elapsed() const {
    const std::lock_guard lock(mutex_);
    return elapsed_;
  }

  /// Called after each sleep, to simulate events during the sleep. Set before threads start.
  std::function<void()> on_sleep;

 private:
  mutable std::mutex mutex_;
  std::chrono::nanoseconds elapsed_{0};
};

}  // namespace xffl::test
