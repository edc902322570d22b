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

}  // namespace xffl::test
