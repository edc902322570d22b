// One SSH connection, shared by threads.
//
// How it works: libssh sessions are not thread-safe, so everything that touches one happens under
// its mutex, in small non-blocking steps; nobody holds the mutex while waiting. A thread of the
// connection waits for the socket, lets libssh take in what arrived and write what is pending, and
// wakes those who wait. So a short command goes between the blocks of a long transfer. That thread
// also asks the server for a sign of life when nothing was heard; after timeouts.silence the
// connection is dead, and everybody who waits on it gets kRemote.
#pragma once

#include <libssh/libssh.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "handshake.h"
#include "xffl/base/file.h"

namespace xffl::remote {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class Connection {
 public:
  /// `session` is logged in. `name` is for messages; `below` is what carries it (a tunnel), kept
  /// alive as long as this.
  Connection(SessionPtr session, std::string name, SshTimeouts timeouts,
             std::shared_ptr<void> below = nullptr);
  ~Connection();

  bool alive() const;
  const std::string& name() const { return name_; }
  const SshTimeouts& timeouts() const { return timeouts_; }

  /// Calls `step` with the session, under the mutex, now and whenever something has happened, until
  /// it returns true. Throws kRemote when the connection is or becomes dead or `deadline` passes
  /// ("... while `doing`"), kCancelled on `stop`, and what `step` throws.
  void wait(const std::function<bool(ssh_session)>& step, Deadline deadline,
            const std::stop_token& stop, const std::string& doing);
  /// Calls `step` once, under the mutex, also on a dead connection.
  void with(const std::function<void(ssh_session)>& step);

  /// Sleeps; ends early, without an error, on `stop` or the connection's end.
  void pause(std::chrono::milliseconds time, const std::stop_token& stop);

  /// Room for one more channel (servers allow few: MaxSessions); false when there is none now.
  /// For channel.cc, under the mutex.
  bool take_channel() { return channels_ < max_channels_ ? (++channels_, true) : false; }
  void lower_channel_limit() { max_channels_ = std::max(1, channels_ - 1); }
  void channel_closed();

  /// Called, without the mutex, when a channel is wanted and there is no room: closes idle ones.
  std::function<void()> on_full;

 private:
  void pump(const std::stop_token& stop);
  void take_in();  // what arrived, and what can be written; wakes those who wait
  void watch_silence();
  void after_step();
  void die(const std::string& reason);
  void wake_pump();

  const std::string name_;
  const SshTimeouts timeouts_;
  const std::shared_ptr<void> below_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  SessionPtr session_;
  ssh_event event_ = nullptr;
  ssh_counter_struct traffic_{};
  uint64_t heard_bytes_ = 0;
  uint64_t generation_ = 0;
  std::chrono::steady_clock::time_point heard_;
  std::chrono::steady_clock::time_point asked_;
  bool writes_ = false;       // as the last step left it: bytes wait for room in the socket
  bool pump_writes_ = false;  // the pump waits for room to write, too
  std::string dead_;          // why, when it is
  int channels_ = 0;
  int max_channels_ = 9;  // OpenSSH's MaxSessions is 10
  UniqueFd wake_;
  std::jthread thread_;
};

}  // namespace xffl::remote
