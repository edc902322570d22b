#include "host_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "known_hosts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using SteadyClock = std::chrono::steady_clock;

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
int finish_connect(int fd, const addrinfo& address, SteadyClock::time_point deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0) return ETIMEDOUT;
    StopScope::check("connecting");
    pollfd wait{fd, POLLOUT, 0};
    const int n = ::poll(&wait, 1, static_cast<int>(std::min<long>(left, 200)));
    if (n == 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0) return errno;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
}

using namespace std::chrono_literals;

constexpr size_t kForwardBlockBytes = 256u << 10;
constexpr size_t kForwardWindowBytes = 16u << 20;
constexpr auto kForever = 24h * 365;
// The tunnel ends when its reader blocks for this long; the sessions inside time out earlier.
constexpr auto kSendTimeout = 60s;

bool wait_readable(int fd, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, 200) > 0) return true;
  }
  return false;
}

// The buffer of a whole window, 16 MiB, as address space. Only the pages that a read has filled
// take memory: libssh 0.10 opens the window only as far as the buffer reaches, but an idle tunnel,
// which lasts as long as its connection, reads a few bytes at a time.
class WindowBuffer {
 public:
  WindowBuffer()
      : begin_(::mmap(nullptr, kForwardWindowBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (begin_ == MAP_FAILED) throw system_error("allocate the buffer of a tunnel", errno);
    // A huge page would take 2 MiB for the first byte. Best effort: a kernel may lack huge pages.
    ::madvise(begin_, kForwardWindowBytes, MADV_NOHUGEPAGE);
  }
  ~WindowBuffer() { ::munmap(begin_, kForwardWindowBytes); }
  WindowBuffer(const WindowBuffer&) = delete;
  WindowBuffer& operator=(const WindowBuffer&) = delete;

  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(begin_), kForwardWindowBytes};
  }
  /// Tells the buffer that a read has filled its first `num_bytes`. The first small read after
  /// large ones frees the pages behind the first block.
  void filled(size_t num_bytes) {
    if (num_bytes > kForwardBlockBytes)
      is_large_ = true;
    else if (std::exchange(is_large_, false))
      ::madvise(bytes().data() + kForwardBlockBytes, kForwardWindowBytes - kForwardBlockBytes,
                MADV_DONTNEED);
  }

 private:
  void* const begin_;
  bool is_large_ = false;
};

bool send_all(int fd, std::span<const std::byte> bytes, const std::stop_token& stop) {
  const auto deadline = std::chrono::steady_clock::now() + kSendTimeout;
  while (!bytes.empty() && !stop.stop_requested()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (std::chrono::steady_clock::now() > deadline) return false;
    pollfd wait{fd, POLLOUT, 0};
    ::poll(&wait, 1, 200);
  }
  return bytes.empty();
}

}  // namespace

UniqueFd connect_tcp(const SshHost& host, const SshTimeouts& timeouts) {
  const auto deadline = SteadyClock::now() + timeouts.connect;
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
    error =
        finish_connect(fd.get(), *at, SteadyClock::now() + (deadline - SteadyClock::now()) / left);
    if (error != 0) continue;
    set_options(fd.get(), timeouts);
    return fd;
  }
  throw Error(ErrorKind::kRemote, where + std::strerror(error));
}

Tunnel::Tunnel(std::shared_ptr<Connection> jump, const SshHost& host)
    : jump_(jump), channel_(Channel::tunnel(jump, host, deadline_in(jump->timeouts().connect))) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw system_error("make a socket pair for a tunnel", errno);
  near_ = UniqueFd(ends[0]);
  far_ = UniqueFd(ends[1]);
  out_ = std::jthread([this](const std::stop_token& stop) { send_loop(stop); });
  in_ = std::jthread([this](const std::stop_token& stop) { receive_loop(stop); });
}

Tunnel::~Tunnel() {
  out_.request_stop();
  in_.request_stop();
  ::shutdown(far_.get(), SHUT_RDWR);
  out_.join();
  in_.join();
}

void Tunnel::send_loop(const std::stop_token& stop) {
  std::vector<std::byte> block(kForwardBlockBytes);
  try {
    while (wait_readable(far_.get(), stop)) {
      const ssize_t n = ::recv(far_.get(), block.data(), block.size(), 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) break;
      channel_.write(std::span(block).first(static_cast<size_t>(n)), deadline_in(kForever), stop,
                     "forwarding bytes to the next host");
    }
  } catch (const Error& error) {
    log::debug("a tunnel ended", {{"why", error.what()}});
  }
  ::shutdown(far_.get(), SHUT_RDWR);
}

void Tunnel::receive_loop(const std::stop_token& stop) {
  try {
    WindowBuffer buffer;
    for (;;) {
      const size_t n = channel_.read(buffer.bytes(), deadline_in(kForever), stop,
                                     "forwarding bytes from the next host", kForwardWindowBytes);
      buffer.filled(n);
      if (n == 0 || !send_all(far_.get(), buffer.bytes().first(n), stop)) break;
    }
  } catch (const Error& error) {
    log::debug("a tunnel ended", {{"why", error.what()}});
  }
  ::shutdown(far_.get(), SHUT_RDWR);
}

}  // namespace xffl::remote
