#include "agent.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "wire.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::remote {
namespace {

constexpr uint8_t kRequestIdentities = 11;
constexpr uint8_t kIdentitiesAnswer = 12;
constexpr uint32_t kMaxAnswerBytes = 256u << 10;  // OpenSSH's own limit

UniqueFd connect_to(const std::filesystem::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.native().size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, socket.c_str(), socket.native().size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  return fd;
}

bool receive(int fd, std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::recv(fd, bytes.data() + done, bytes.size() - done, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

std::vector<AgentIdentity> parse_answer(std::string_view answer) {
  WireReader in(answer, "the SSH agent's answer");
  std::vector<AgentIdentity> identities;
  if (in.u8() != kIdentitiesAnswer) return identities;
  for (uint32_t left = in.u32(); left > 0; --left) {
    AgentIdentity identity;
    identity.blob = in.string();
    identity.comment = in.string();
    identities.push_back(std::move(identity));
  }
  return identities;
}

}  // namespace

std::filesystem::path agent_socket() {
  const char* path = std::getenv("SSH_AUTH_SOCK");
  return path == nullptr ? "" : path;
}

std::vector<AgentIdentity> agent_identities(const std::filesystem::path& socket) {
  const UniqueFd fd = connect_to(socket);
  if (!fd) return {};
  const std::string request = WireWriter().u32(1).u8(kRequestIdentities).bytes();
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return {};
  std::string length(4, '\0');
  if (!receive(fd.get(), length)) return {};
  const uint32_t size = WireReader(length, "the SSH agent's answer").u32();
  if (size == 0 || size > kMaxAnswerBytes) return {};
  std::string answer(size, '\0');
  if (!receive(fd.get(), answer)) return {};
  try {
    return parse_answer(answer);
  } catch (const Error&) {
    return {};  // a malformed answer counts as an empty agent
  }
}

}  // namespace xffl::remote
