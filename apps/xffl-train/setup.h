// What the commands that work in a group of ranks begin with.
#pragma once

#include <functional>
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

/// Calls `body`. In a group of several ranks an error that leaves it ends the process at once (see
/// end_process): the group's communicators, whose own end would wait for the other ranks, are never
/// closed. The launcher ends the other ranks. With one rank the error goes on up.
void run_as_rank(const Rank& rank, const std::function<void()>& body);

}  // namespace xffl::train_app
