// One SSH channel: a command, a subsystem or a tunnel.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "connection.h"

namespace xffl::remote {

enum class Stream { kOut, kErr };

/// Not thread-safe; different channels of one connection are independent. Steps of Connection::wait
/// call the try_ functions under its mutex; all other functions block.
class Channel {
 public:
  /// Starts a command line in the user's log-in shell. Throws kUnsupported when the server refuses
  /// the request; like all blocking functions, kRemote.
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

  /// Reads bytes that have arrived, 0 when there are none, and opens the window to `window` bytes.
  /// Throws kRemote.
  size_t try_read(std::span<std::byte> out, Stream stream, size_t window);
  /// True when the server has ended the stream and all bytes were read.
  bool at_end() const;
  /// False after the server has closed the channel.
  bool takes_input() const;
  /// Writes as many bytes as the server's window takes; 0 while earlier bytes are unsent or after
  /// the server has closed the channel. Throws kRemote.
  size_t try_write(std::span<const std::byte> bytes);
  void send_eof();

  /// Reads at least one byte, or returns 0 at the end of stdout; stderr is dropped.
  size_t read(std::span<std::byte> out, Deadline deadline, const std::stop_token& stop,
              const std::string& activity, size_t window = 0);
  void write(std::span<const std::byte> bytes, Deadline deadline, const std::stop_token& stop,
             const std::string& activity);

 private:
  struct Free {
    Connection* connection;
    bool session;  // counts against MaxSessions
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
};

}  // namespace xffl::remote
