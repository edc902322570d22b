// Connecting to hosts that have several addresses.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <thread>

#include "host_socket.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::remote {
namespace {

sockaddr_in at(const char* address, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address, &name.sin_addr);
  return name;
}

UniqueFd open_socket() {
  return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

UniqueFd listen_at(const char* address, int& port, int backlog) {
  UniqueFd fd = open_socket();
  sockaddr_in name = at(address, port);
  socklen_t size = sizeof name;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), size) != 0 ||
      ::listen(fd.get(), backlog) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0)
    return {};
  port = ntohs(name.sin_port);
  return fd;
}

// False when the full queue still answers, as on some kernels.
bool fill(std::vector<UniqueFd>& clients, const char* address, int port) {
  const sockaddr_in name = at(address, port);
  for (int i = 0; i < 20; ++i) {
    clients.push_back(open_socket());
    const int fd = clients.back().get();
    ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
    pollfd wait{fd, POLLOUT, 0};
    if (::poll(&wait, 1, 300) == 0) return true;
  }
  return false;
}

// The address that a connection to "twofold" reaches, or the error. A private /etc/hosts has the
// name, of 127.0.0.2 and 127.0.0.3. Empty: mount namespaces are refused.
std::string reached(int port) {
  test::TempDir dir;
  write_file_atomic(dir / "hosts", "127.0.0.2 twofold\n127.0.0.3 twofold\n", 0644);
  std::string address;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount((dir / "hosts").c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0)
      return;
    try {
      const UniqueFd fd = connect_tcp({"twofold", port}, {.connect = std::chrono::seconds(3)});
      sockaddr_in peer{};
      socklen_t size = sizeof peer;
      char text[INET_ADDRSTRLEN] = {};
      ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &size);
      address = ::inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text);
    } catch (const Error& error) {
      address = error.what();
    }
  }).join();
  return address;
}

// Unreachable IPv6 addresses are common; here the first of two addresses never answers.
TEST(ConnectTcp, ASilentAddressLeavesTimeForTheNext) {
  int port = 0;
  const UniqueFd silent = listen_at("127.0.0.2", port, 0);
  const UniqueFd answering = listen_at("127.0.0.3", port, 8);
  ASSERT_TRUE(silent && answering);
  std::vector<UniqueFd> clients;
  if (!fill(clients, "127.0.0.2", port)) GTEST_SKIP() << "this kernel answers on a full queue";
  const std::string address = reached(port);
  if (address.empty()) GTEST_SKIP() << "no mount namespaces";
  EXPECT_EQ(address, "127.0.0.3");
}

TEST(ConnectTcp, AStopEndsTheAttempt) {
  int port = 0;
  const UniqueFd silent = listen_at("127.0.0.2", port, 0);
  ASSERT_TRUE(silent);
  std::vector<UniqueFd> clients;
  if (!fill(clients, "127.0.0.2", port)) GTEST_SKIP() << "this kernel answers on a full queue";
  std::stop_source stop;
  stop.request_stop();
  const StopScope scope(stop.get_token());
  const auto connect = [&] {
    connect_tcp({"127.0.0.2", port}, {.connect = std::chrono::seconds(1)});
  };
  EXPECT_EQ(test::kind_of(connect), ErrorKind::kCancelled);
}

// The kernel, too, ends a connection whose peer acknowledges nothing for as long as the silence
// that ends a link.
TEST(ConnectTcp, TheKernelGivesUpAfterTheSilenceOfADeadLink) {
  int port = 0;
  const UniqueFd listener = listen_at("127.0.0.2", port, 8);
  ASSERT_TRUE(listener);
  const UniqueFd fd = connect_tcp({"127.0.0.2", port}, {});
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(fd.get(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 30'000);
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
}

// One of the two addresses refuses the connection, whichever is tried first.
TEST(ConnectTcp, TriesTheNextAddressAfterARefusal) {
  for (const char* answering : {"127.0.0.2", "127.0.0.3"}) {
    int port = 0;
    const UniqueFd listener = listen_at(answering, port, 8);
    ASSERT_TRUE(listener);
    const std::string address = reached(port);
    if (address.empty()) GTEST_SKIP() << "no mount namespaces";
    EXPECT_EQ(address, answering);
  }
}

}  // namespace
}  // namespace xffl::remote
