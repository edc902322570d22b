// A real SSH server whose channels misbehave as a test wants.
//
// Behind each channel runs the real program: OpenSSH's sftp-server, or `sh -c` for a command. The
// test's Behaviour slows, floods, cuts, rewrites or replaces the bytes between the program and the
// client, for SFTP packet by packet. So a case differs from an honest facility in one fault only,
// and the client under test uses its real SSH connection. The server accepts any public key.
//
//   HostileServer server;
//   server.on_channel = [](const std::string& command) {
//     HostileServer::Behaviour behaviour;
//     if (command == "sftp") behaviour.on_request = [](const SftpPacket& request) { ... };
//     return behaviour;
//   };
//   auto session = remote::make_ssh_session(server.settings());
#pragma once

#include <libssh/libssh.h>
#include <libssh/server.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/temp_dir.h"
#include "xffl/remote/ssh.h"

namespace xffl::test {

// A packet of SFTP version 3, without its length.
struct SftpPacket {
  uint8_t type = 0;  // SSH_FXP_*: see the constants below
  uint32_t id = 0;
  std::string body;  // after the id

  std::string bytes() const;  // as it travels, with its length
};
inline constexpr uint8_t kSftpInit = 1, kSftpVersion = 2, kSftpOpen = 3, kSftpClose = 4,
                         kSftpRead = 5, kSftpWrite = 6, kSftpLstat = 7, kSftpOpendir = 11,
                         kSftpReaddir = 12, kSftpRemove = 13, kSftpMkdir = 14, kSftpRename = 18,
                         kSftpStatus = 101, kSftpHandle = 102, kSftpData = 103, kSftpName = 104,
                         kSftpAttrs = 105, kSftpExtended = 200, kSftpExtendedReply = 201;

/// Encodings for forged answers.
std::string sftp_u32(uint32_t value);
std::string sftp_u64(uint64_t value);
std::string sftp_string(std::string_view text);
/// The answer SSH_FXP_STATUS with `code` (0 ok, 1 end of file, 2 no such file, 4 failure).
std::string sftp_status(uint32_t id, uint32_t code, std::string_view message = "forged");

class HostileServer {
 public:
  struct Behaviour {
    // Bytes per second from the program to the client after `free_bytes`; negative: unlimited, 0:
    // none at all. 1.0 / 60 is one byte a minute.
    double sends_per_second = -1;
    uint64_t free_bytes = 0;
    // The same for the bytes from the client to the program. A slow reader also closes the window.
    double takes_per_second = -1;
    bool floods_stderr = false;  // with zeros, after a command's first output
    bool floods_stdout = false;
    bool refuses = false;           // the exec or subsystem request fails
    uint64_t closes_after = ~0ull;  // the channel closes after this many bytes to the client
    bool hides_exit = false;        // no exit status, no end of file, no close
    /// SFTP: the bytes that answer a request, which the real server does not get; none: forward.
    std::function<std::optional<std::string>(const SftpPacket& request)> on_request;
    /// SFTP: the bytes that replace a real answer.
    std::function<std::string(const SftpPacket& answer)> on_answer;
    /// A command: the bytes that replace a piece of its stdout.
    std::function<std::string(std::string_view piece)> on_output;
    /// A command: the bytes that replace a piece of its stderr.
    std::function<std::string(std::string_view piece)> on_error;
    std::string exit_signal;  // ends a command in place of its exit status
    /// Called once in the connection's thread, when the program has started.
    std::function<void(ssh_session session, ssh_channel channel)> on_start;
    /// Called in the connection's thread until the channel ends; true when it moved bytes.
    std::function<bool(ssh_session session, ssh_channel channel)> on_step;
  };

  // The server before a channel exists.
  struct Greeting {
    /// Replaces the SSH server on a new connection: talks on its socket until `stop`.
    std::function<void(int socket, const std::stop_token& stop)> raw;
    std::string banner;    // a message of the authentication
    bool refuses = false;  // no key is accepted
    bool partial = false;  // each key is a partial success, for ever
    bool prompts = false;  // offers keyboard-interactive, which asks `prompt` again and again
    std::string prompt = "Password: ";
    bool no_channels = false;  // the opening of a channel fails
  };

  /// Empty when a server can run here.
  static std::string missing();

  HostileServer();
  ~HostileServer();
  HostileServer(const HostileServer&) = delete;
  HostileServer& operator=(const HostileServer&) = delete;

  /// Settings for a log-in with a trusted host key. `shell` false: the client uses SFTP only.
  remote::SshSettings settings(bool shell = true) const;
  int port() const { return port_; }
  const TempDir& dir() const { return dir_; }

  /// The behaviour of a new channel: `command` is "sftp" or the command line. Honest without a
  /// function. Set it with set(); the server's threads call it.
  using OnChannel = std::function<Behaviour(const std::string& command)>;
  void set(OnChannel on_channel);
  /// The behaviour of new connections.
  void set_greeting(Greeting greeting);
  /// A folder of programs that replace the system's in the PATH of commands.
  void set_programs(const std::filesystem::path& folder) { programs_ = folder; }
  int channels(const std::string& part = "") const;  // opened, whose command contains `part`
  int connections() const { return num_connections_; }

 private:
  class Channel;
  void listen(const std::stop_token& stop);
  void serve(ssh_session session, const std::stop_token& stop);
  bool answer(ssh_session session, ssh_message message, std::list<Channel>& channels);
  bool log_in(ssh_session session, ssh_message message, int method) const;
  Behaviour behaviour_of(const std::string& command);
  Greeting greeting() const;

  TempDir dir_;
  std::filesystem::path programs_;
  int port_ = 0;
  ssh_bind bind_ = nullptr;
  mutable std::mutex mutex_;
  OnChannel on_channel_;
  Greeting greeting_;
  std::vector<std::string> commands_;
  std::atomic<int> num_connections_ = 0;
  std::vector<std::jthread> connections_;
  std::jthread listener_;
};

}  // namespace xffl::test
