// Limits the rate of new connections to a host.
//
// Sites ban addresses that connect too often (MaxStartups, fail2ban, PerSourcePenalties). Per host
// the limits are 6 new connections in a minute and 60 in an hour, and after a failure a pause that
// doubles from 1 s to 1 min (with jitter) until a connection succeeds. The sessions of a program
// share the limits, so that facilities behind one host count together. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "xffl/base/clock.h"

namespace xffl::remote {

class ConnectionLimits {
 public:
  explicit ConnectionLimits(const Clock& clock) : clock_(clock) {}

  /// The time until a new connection to `host` is allowed; zero when it is allowed now.
  std::chrono::nanoseconds wait(const std::string& host) const;
  /// Called before each attempt. Returns wait(); unless that exceeds `max_wait`, counts an attempt
  /// at the end of the wait.
  std::chrono::nanoseconds start(const std::string& host, std::chrono::nanoseconds max_wait);
  void succeeded(const std::string& host);
  void failed(const std::string& host);

 private:
  struct Host {
    std::deque<Clock::MonotonicTime> attempts;  // of the last hour
    int failures = 0;
    Clock::MonotonicTime not_before{};
  };

  std::chrono::nanoseconds wait_locked(const std::string& host) const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<std::string, Host> hosts_;
  std::minstd_rand jitter_{std::random_device{}()};
};

}  // namespace xffl::remote
