// Connecting to hosts that have several addresses.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <thread>

#include "host_socket.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

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

// Unreachable IPv6 addresses are common; here the first of two addresses never answers.
TEST(ConnectTcp, ASilentAddressLeavesTimeForTheNext) {
  int port = 0;
  const UniqueFd silent = listen_at("127.0.0.2", port, 0);
  const UniqueFd answering = listen_at("127.0.0.3", port, 8);
  ASSERT_TRUE(silent && answering);
  std::vector<UniqueFd> clients;
  if (!fill(clients, "127.0.0.2", port)) GTEST_SKIP() << "this kernel answers on a full queue";
  test::TempDir dir;
  write_file_atomic(dir.path() / "hosts", "127.0.0.2 twofold\n127.0.0.3 twofold\n", 0644);
  std::string problem;
  std::thread([&] {  // with a private /etc/hosts
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount((dir.path() / "hosts").c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
      problem = "skip";
      return;
    }
    try {
      connect_tcp({"twofold", port}, {.connect = std::chrono::seconds(3)});
    } catch (const Error& error) {
      problem = error.what();
    }
  })
      .join();
  if (problem == "skip") GTEST_SKIP() << "no mount namespaces";
  EXPECT_EQ(problem, "");
}

}  // namespace
}  // namespace xffl::remote
