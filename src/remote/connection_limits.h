// How often a host may be asked for a new connection.
//
// Sites ban addresses that connect too often (MaxStartups, fail2ban, PerSourcePenalties). Per host:
// at most 6 new connections in a minute and 60 in an hour, whatever the reason, and after a failure
// a pause that doubles from 1 s to 1 min (with jitter) until a connection works. Shared by the
// sessions of a program, so that facilities behind one host are one visitor. Thread-safe.
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

  /// Time until `host` may be connected to; zero when it may be now.
  std::chrono::nanoseconds wait(const std::string& host) const;
  /// To be called before each attempt: wait(), and unless that is longer than `patience`, the
  /// attempt is counted as made when the wait is over.
  std::chrono::nanoseconds start(const std::string& host, std::chrono::nanoseconds patience);
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
