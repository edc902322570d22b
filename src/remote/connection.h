// One SSH connection, shared by threads.
//
// How it works: libssh sessions are not thread-safe, so every access is a short non-blocking step
// under a mutex, and no thread holds the mutex while it waits. The connection's own thread polls
// the socket, lets libssh read and write, and wakes the waiting threads, so a short command runs
// between the blocks of a long transfer. That thread also sends keepalives while the link is
// silent. After timeouts.silence the connection is dead, and every waiting call throws kRemote.
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
  /// `session` is logged in. `name` is for messages. `below`, the tunnel that carries the
  /// connection, lives as long as the connection.
  Connection(SessionPtr session, std::string name, SshTimeouts timeouts,
             std::shared_ptr<void> below = nullptr);
  ~Connection();

  bool alive() const;
  const std::string& name() const { return name_; }
  const SshTimeouts& timeouts() const { return timeouts_; }

  /// Calls `step` with the session, under the mutex, now and after each event, until it returns
  /// true. Throws kRemote when the connection is dead or `deadline` passes ("... while
  /// `activity`"), kCancelled on `stop`; passes on exceptions of `step`.
  void wait(const std::function<bool(ssh_session)>& step, Deadline deadline,
            const std::stop_token& stop, const std::string& activity);
  /// Calls `step` once, under the mutex, also on a dead connection.
  void with(const std::function<void(ssh_session)>& step);

  /// Sleeps; ends early, without an error, on `stop` or the connection's end.
  void pause(std::chrono::milliseconds time, const std::stop_token& stop);

  /// Reserves one of the server's channels (MaxSessions); false when all are in use. Called by
  /// channel.cc under the mutex.
  bool take_channel() { return channels_ < max_channels_ ? (++channels_, true) : false; }
  void lower_channel_limit() { max_channels_ = std::max(1, channels_ - 1); }
  void channel_closed();

  /// Called without the mutex when all channels are in use; closes idle channels.
  std::function<void()> on_full;

 private:
  void pump(const std::stop_token& stop);
  void exchange();  // reads and writes the socket, then wakes the waiting threads
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
  bool writes_ = false;       // after the last step, libssh has unsent bytes
  bool pump_writes_ = false;  // the pump polls for POLLOUT, too
  std::string dead_;          // the reason; empty while the connection is alive
  int channels_ = 0;
  int max_channels_ = 9;  // OpenSSH's MaxSessions is 10
  UniqueFd wake_;
  std::jthread thread_;
};

}  // namespace xffl::remote
