// One SSH connection, shared by threads, and its channels.
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
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>

#include "handshake.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {

using Deadline = std::chrono::steady_clock::time_point;
inline constexpr std::chrono::milliseconds kCheckInterval{500};  // of the progress of a transfer

inline Deadline deadline_in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class Connection {
 public:
  /// `session` is authenticated; messages contain `name`. The connection holds `below`, the tunnel
  /// that carries the connection, until its own end.
  Connection(SessionPtr session, std::string name, SshTimeouts timeouts,
             std::shared_ptr<void> below = nullptr);
  ~Connection();

  bool alive() const;
  const std::string& name() const { return name_; }
  const SshTimeouts& timeouts() const { return timeouts_; }

  /// Calls `step` with the session, under the mutex, now and after each event, until `step` returns
  /// true. Throws kRemote when the connection is dead or `deadline` passes ("... while
  /// `activity`"), kCancelled on `stop` and on the thread's StopScope; passes on exceptions of
  /// `step`. Checks both times also when data arrives without a pause.
  void wait(const std::function<bool(ssh_session)>& step, Deadline deadline,
            const std::stop_token& stop, const std::string& activity);
  /// Like wait(), but returns false when `deadline` passes.
  bool wait_until(const std::function<bool(ssh_session)>& step, Deadline deadline,
                  const std::stop_token& stop, const std::string& activity);
  /// Calls `step` once, under the mutex, also on a dead connection.
  void with(const std::function<void(ssh_session)>& step);

  /// Sleeps; ends early, without an error, on `stop` or the connection's end.
  void pause(std::chrono::milliseconds time, const std::stop_token& stop);

  /// Reserves one of the server's channels (MaxSessions); false when all are in use. Channel calls
  /// take_channel() under the mutex.
  bool take_channel() { return channels_ < max_channels_ ? (++channels_, true) : false; }
  void lower_channel_limit() { max_channels_ = std::max(1, channels_ - 1); }
  void channel_closed();

  /// Closes idle channels. Channel calls on_full without the mutex when all channels are in use.
  std::function<void()> on_full;

 private:
  void pump(const std::stop_token& stop);
  void exchange();  // reads and writes the socket, then wakes the waiting threads
  void watch_silence();
  bool run_step(const std::function<bool(ssh_session)>& step);  // and after_step()
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
  bool writes_ = false;       // libssh had unsent bytes after the last step
  bool pump_writes_ = false;  // the pump polls for POLLOUT, too
  std::string dead_;          // the reason; empty while the connection is alive
  int channels_ = 0;
  int max_channels_ = 9;  // OpenSSH's MaxSessions is 10
  UniqueFd wake_;
  std::jthread thread_;
};

/// kRemote: other channels of the connection have used all that the server allows, until the
/// deadline. Nothing was sent.
class NoFreeChannel : public Error {
 public:
  using Error::Error;
};

enum class Stream { kOut, kErr };

/// One SSH channel: a command, a subsystem or a tunnel.
///
/// Not thread-safe; different channels of one connection are independent. Steps of Connection::wait
/// call the try_ functions under its mutex; all other functions block.
class Channel {
 public:
  /// Starts a command line in the user's login shell. Throws kUnsupported when the server refuses
  /// the request and, like all blocking functions, kRemote (NoFreeChannel: see there).
  static Channel exec(std::shared_ptr<Connection> connection, const std::string& command,
                      Deadline deadline, const std::stop_token& stop);
  static Channel sftp(std::shared_ptr<Connection> connection, Deadline deadline,
                      const std::stop_token& stop);
  /// A TCP connection from the server to `host`: ProxyJump. Throws kRemote.
  static Channel tunnel(std::shared_ptr<Connection> connection, const SshHost& host,
                        Deadline deadline);

  Channel(Channel&& other) noexcept = default;
  Channel& operator=(Channel&&) = delete;
  ~Channel();

  Connection& connection() { return *connection_; }

  /// Opens the window to `window` bytes and reads the bytes that have arrived. Returns their
  /// number, which may be 0. Throws kRemote.
  size_t try_read(std::span<std::byte> out, Stream stream, size_t window);
  /// True when the server has ended the stream and the caller has read all bytes.
  bool at_end() const;
  /// False after the server has closed the channel.
  bool takes_input() const;
  /// Writes as many bytes as the server's window takes and returns their number. Returns 0 while
  /// earlier bytes are unsent and after the server has closed the channel. Throws kRemote.
  size_t try_write(std::span<const std::byte> bytes);
  void send_eof();

  /// Reads at least one byte, or returns 0 at the end of stdout; drops stderr, and throws kRemote
  /// when the server sends 16 MiB of it through the channel.
  size_t read(std::span<std::byte> out, Deadline deadline, const std::stop_token& stop,
              const std::string& activity, size_t window = 0);
  void write(std::span<const std::byte> bytes, Deadline deadline, const std::stop_token& stop,
             const std::string& activity);

 private:
  struct Free {
    Connection* connection;
    bool session;  // true: the channel counts against MaxSessions
    void operator()(ssh_channel channel) const;
  };
  using Handle = std::unique_ptr<ssh_channel_struct, Free>;

  Channel(std::shared_ptr<Connection> connection, Handle handle)
      : connection_(std::move(connection)), handle_(std::move(handle)) {}
  static void wait_for_slot(Connection& link, Deadline deadline, const std::stop_token& stop);
  static Channel open(std::shared_ptr<Connection> connection, Deadline deadline,
                      const std::stop_token& stop);
  void request(const std::string& activity, Deadline deadline, const std::stop_token& stop,
               const std::function<int(ssh_channel)>& step);
  [[noreturn]] void fail(const std::string& activity) const;

  std::shared_ptr<Connection> connection_;
  Handle handle_;
  bool closed_ = false;  // the server takes no more input
  size_t granted_ = 0;   // bytes left in the window
  size_t dropped_ = 0;   // bytes of stderr
};

}  // namespace xffl::remote
