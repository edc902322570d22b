// ProxyJump: a socket whose bytes travel through a channel of another connection.
//
// libssh 0.10 has no native ProxyJump. Two threads copy bytes, one for each direction; the tunnel
// ends with either side and with its destruction.
#pragma once

#include <memory>
#include <thread>

#include "channel.h"

namespace xffl::remote {

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
