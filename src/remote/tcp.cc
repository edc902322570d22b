#include "tcp.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "known_hosts.h"
#include "xffl/base/error.h"

namespace xffl::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUnsentBytes = 512 << 10;

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

void set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value,
               sizeof value);  // best effort: a kernel may lack the option
}

void set_options(int fd, const SshTimeouts& timeouts) {
  using std::chrono::duration_cast;
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeouts.silence.count()));
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
}

// Returns 0 or the errno of connect().
int finish_connect(int fd, const addrinfo& address, Clock::time_point deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{fd, POLLOUT, 0};
    const int n = ::poll(&wait, 1, static_cast<int>(std::max<long>(left, 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? ETIMEDOUT : errno;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
}

}  // namespace

UniqueFd connect_tcp(const SshHost& host, const SshTimeouts& timeouts) {
  const auto deadline = Clock::now() + timeouts.connect;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  AddressList addresses;
  const std::string where = "cannot connect to " + host_label(host) + ": ";
  if (const int problem = ::getaddrinfo(host.name.c_str(), std::to_string(host.port).c_str(),
                                        &hints, &addresses.first);
      problem != 0)
    throw Error(ErrorKind::kRemote, where + ::gai_strerror(problem));
  int error = EADDRNOTAVAIL, left = 0;
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) ++left;
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next, --left) {
    UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    // Each address gets an equal share of the time: IPv6 often does not answer.
    error = finish_connect(fd.get(), *at, Clock::now() + (deadline - Clock::now()) / left);
    if (error != 0) continue;
    set_options(fd.get(), timeouts);
    return fd;
  }
  throw Error(ErrorKind::kRemote, where + std::strerror(error));
}

}  // namespace xffl::remote
