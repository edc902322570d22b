// One channel of a connection: a command's three streams, a subsystem's two, or a tunnel.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "connection.h"

namespace xffl::remote {

enum class Stream { kOut, kErr };

/// Not thread-safe itself; different channels of one connection are independent. The try_ functions
/// are for steps of Connection::wait, under its mutex; the others block.
class Channel {
 public:
  /// Starts a command: one text, for the user's log-in shell. Throws kRemote, as the others do;
  /// kUnsupported when the server is there and refuses.
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

  /// What has arrived, 0 when nothing; lets up to `window` bytes be on their way. Throws kRemote.
  size_t try_read(std::span<std::byte> out, Stream stream, size_t window);
  /// No more bytes will come, and all were read.
  bool at_end() const;
  /// False once the far side has closed the channel.
  bool takes_input() const;
  /// Hands over what the server has room for; 0 while earlier bytes wait to be sent, and when the
  /// far side has closed the channel. Throws kRemote.
  size_t try_write(std::span<const std::byte> bytes);
  void send_eof();

  /// At least one byte, or 0 at the end of the standard output; the error stream is dropped.
  size_t read(std::span<std::byte> out, Deadline deadline, const std::stop_token& stop,
              const std::string& doing, size_t window = 0);
  void write(std::span<const std::byte> bytes, Deadline deadline, const std::stop_token& stop,
             const std::string& doing);

 private:
  struct Free {
    Connection* connection;
    bool session;  // counts against MaxSessions
    void operator()(ssh_channel channel) const;
  };
  using Handle = std::unique_ptr<ssh_channel_struct, Free>;

  Channel(std::shared_ptr<Connection> connection, Handle handle)
      : connection_(std::move(connection)), handle_(std::move(handle)) {}
  static void wait_for_room(Connection& link, Deadline deadline, const std::stop_token& stop);
  static Channel open(std::shared_ptr<Connection> connection, Deadline deadline,
                      const std::stop_token& stop);
  void request(const std::string& what, Deadline deadline, const std::stop_token& stop,
               const std::function<int(ssh_channel)>& step);
  [[noreturn]] void fail(const std::string& doing) const;

  std::shared_ptr<Connection> connection_;
  Handle handle_;
  bool closed_ = false;  // the far side takes no more input
  size_t granted_ = 0;   // bytes that may still come before the window is opened again
};

}  // namespace xffl::remote
