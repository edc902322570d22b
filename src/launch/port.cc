#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/launch/ranks.h"

namespace xffl::launch {

int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw system_error("make a socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  void* const raw = &address;
  if (::bind(fd.get(), static_cast<sockaddr*>(raw), size) != 0 ||
      ::getsockname(fd.get(), static_cast<sockaddr*>(raw), &size) != 0)
    throw system_error("find a free port on 127.0.0.1", errno);
  return ntohs(address.sin_port);
}

}  // namespace xffl::launch
