// The progress of payload bytes towards a facility, and the limit of the bytes on their way.
//
// How it works: a channel accepts bytes long before they arrive: libssh and the kernel hold up to
// some megabytes. UploadFlow subtracts the bytes in the sockets' send queues (SIOCOUTQ) from the
// accepted bytes. The difference grows only while the facility acknowledges payload; neither
// keepalives nor answers on stderr count. On a slow link the kernel would queue a minute of data,
// and a short command, a keepalive or a retransmission would wait behind this queue. So ready() is
// false while the queue holds more than four seconds of the measured rate.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "connection.h"

namespace xffl::remote {

// Thread-safe.
class UploadFlow {
 public:
  /// `activity` is for messages: "write /path". The flow fails after timeouts().operation without a
  /// delivered byte.
  UploadFlow(std::vector<std::shared_ptr<Connection>> connections, std::string activity);

  /// Adds bytes that a channel has accepted.
  void accepted(uint64_t bytes);
  /// Throws kRemote when the time without progress is over.
  void check();
  /// Waits until the queue has room. Throws kRemote like check() and on a lost link, kCancelled.
  void wait_for_room(const std::stop_token& stop);

 private:
  using Time = std::chrono::steady_clock::time_point;

  bool has_room(Time now);

  const std::vector<std::shared_ptr<Connection>> connections_;
  const std::string activity_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  uint64_t accepted_ = 0, queued_ = 0, delivered_ = 0;
  double bytes_per_second_ = 0;
  Time measured_, progressed_;
};

}  // namespace xffl::remote
