// ProxyJump: a socket whose bytes travel through a channel of another connection.
//
// libssh 0.10 has none of its own. Two threads carry bytes, one for each direction; the tunnel ends
// with either side and when it is destroyed.
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

  /// The near end, for an SSH session to talk into; once.
  UniqueFd take_socket() { return std::move(near_); }

 private:
  void carry_out(const std::stop_token& stop);
  void carry_in(const std::stop_token& stop);

  std::shared_ptr<Connection> jump_;
  Channel channel_;
  UniqueFd near_, far_;
  std::jthread out_, in_;
};

}  // namespace xffl::remote
