// How it works: LibTorch contains Gloo but ships none of its headers. This file, the only user of
// Gloo, includes the headers of the system's libgloo and links LibTorch's code. Each new group
// computes test sums to check that headers and code agree.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backend_group.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::comm {
namespace {

// Returns this machine's address on the route to the master. The address comes from a connected UDP
// socket, which sends no packet.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const UniqueFd fd(socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    auto* address = reinterpret_cast<sockaddr*>(&local);
    char name[NI_MAXHOST] = "";
    if (fd && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd.get(), address, &size) == 0 &&
        getnameinfo(address, size, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0) {
      return name;
    }
  }
  return "";
}

std::shared_ptr<gloo::transport::Device> make_device(const Rendezvous& rendezvous) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
      interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = address_towards(rendezvous.master_address, rendezvous.master_port);
  // Some machines resolve their own name to a loopback address, which other machines cannot reach.
  const bool loopback = address.starts_with("127.") || address == "::1";
  const bool one_machine = rendezvous.local_world_size == rendezvous.world_size;
  if (address.empty() || (loopback && !one_machine))
    return c10d::ProcessGroupGloo::createDefaultDevice();
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

bool has_gloo() { return true; }

BackendMaker gloo_maker(const Rendezvous& rendezvous) {
  BackendMaker maker{"gloo", at::kCPU, nullptr, true};
  maker.connect = [rendezvous](c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
    auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.timeout);
    options->devices.push_back(make_device(rendezvous));
    options->threads = 2;
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  };
  return maker;
}

}  // namespace xffl::comm
