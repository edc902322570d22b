// Ranks of a Gloo group as threads of this process.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/comm/group.h"

namespace xffl::test {

inline int free_port() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd.get(), generic, size), 0);
  EXPECT_EQ(getsockname(fd.get(), generic, &size), 0);
  return ntohs(address.sin_port);
}

/// Runs `body` on `world_size` ranks at once.
inline void run_ranks(int world_size, const std::function<void(comm::Group&)>& body,
                      std::chrono::seconds timeout = std::chrono::seconds(60)) {
  // c10d's flight recorder is one for the whole process, and not made for groups of several
  // threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const comm::Rendezvous rendezvous{rank,        world_size, rank,   world_size,
                                        "127.0.0.1", port,       timeout};
      const std::unique_ptr<comm::Group> group = comm::make_group(rendezvous, at::kCPU);
      body(*group);
      group->barrier();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace xffl::test
