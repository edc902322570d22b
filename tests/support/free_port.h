// A free TCP port of the loopback interface.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <stdexcept>

#include "xffl/base/file.h"

namespace xffl::test {

/// Another program may take the port before the caller binds it.
inline int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd.get(), generic, size) != 0 || ::getsockname(fd.get(), generic, &size) != 0)
    throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

/// A listening socket that nobody serves: it accepts connections and says nothing.
inline UniqueFd listen_on(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), 16) != 0)
    throw std::runtime_error("cannot listen");
  return fd;
}

}  // namespace xffl::test
