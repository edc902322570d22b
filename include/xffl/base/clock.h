// Time behind an interface, so that tests can replace the clock.
//
// Waits use the monotonic clock; time stamps are UTC. A jump of the wall clock changes no wait.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

namespace xffl {

class Clock {
 public:
  using MonotonicTime = std::chrono::steady_clock::time_point;
  using UtcTime = std::chrono::system_clock::time_point;

  virtual ~Clock() = default;
  virtual MonotonicTime monotonic() const = 0;
  virtual UtcTime utc() const = 0;

  /// Blocks for `duration` or until a stop request; returns false after a stop request.
  virtual bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) = 0;
};

class SystemClock final : public Clock {
 public:
  MonotonicTime monotonic() const override;
  UtcTime utc() const override;
  bool sleep(std::chrono::nanoseconds duration, std::stop_token stop) override;
};

/// "2026-03-01T12:34:56.789Z".
std::string format_utc(Clock::UtcTime time);
/// The inverse of format_utc(); empty for any other text.
std::optional<Clock::UtcTime> parse_utc(std::string_view text);

}  // namespace xffl
