// What the commands that work in a group of ranks begin with.
#pragma once

#include <memory>

#include "commands.h"
#include "xffl/comm/group.h"

namespace xffl::train_app {

/// This rank, its device and its group, from the environment.
struct Rank {
  comm::Rendezvous rendezvous;
  at::Device device = at::kCPU;
  std::unique_ptr<comm::Group> group;

  bool is_first() const { return rendezvous.rank == 0; }
};
Rank set_up_rank(const CommonOptions& options);

}  // namespace xffl::train_app
