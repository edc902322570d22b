// Ranks of a Gloo group as threads of this process.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/free_port.h"
#include "xffl/comm/group.h"

namespace xffl::test {

/// Runs `body` on `world_size` ranks in parallel.
inline void run_ranks(int world_size, const std::function<void(comm::Group&)>& body,
                      std::chrono::seconds timeout = std::chrono::seconds(60)) {
  // c10d has one flight recorder per process, which does not support groups in several threads.
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
