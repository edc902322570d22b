// The socket of an SSH connection: TCP to the host, or a tunnel through a jump host.
#pragma once

#include <memory>
#include <thread>

#include "connection.h"
#include "xffl/base/file.h"
#include "xffl/remote/ssh.h"

namespace xffl::remote {

/// Returns a connected, non-blocking socket with keepalive, TCP_USER_TIMEOUT, TCP_NODELAY, and
/// little unsent data in the kernel, so that a short command does not wait behind a long upload.
/// Tries every address of the name within timeouts.connect. Throws kRemote.
UniqueFd connect_tcp(const SshHost& host, const SshTimeouts& timeouts);

/// ProxyJump: a socket whose bytes travel through a channel of another connection.
///
/// libssh 0.10 has no native ProxyJump. Two threads copy bytes, one for each direction; the tunnel
/// ends with either side and with its destruction.
class Tunnel {
 public:
  /// Asks `jump` to connect to `host`. Throws kRemote.
  Tunnel(std::shared_ptr<Connection> jump, const SshHost& host);
  ~Tunnel();

  /// Returns the local end for an SSH session; call once.
  UniqueFd take_socket() { return std::move(near_); }

 private:
  void send_loop(const std::stop_token& stop);
  void receive_loop(const std::stop_token& stop);

  std::shared_ptr<Connection> jump_;
  Channel channel_;
  UniqueFd near_, far_;
  std::jthread out_, in_;
};

}  // namespace xffl::remote
