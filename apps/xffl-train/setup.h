// The set-up of the commands: process, device and group of ranks, and shared options.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "commands.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/comm/group.h"

namespace xffl::train_app {

/// This rank with its device and its group, from the environment.
struct Rank {
  comm::Rendezvous rendezvous;
  at::Device device = at::kCPU;
  std::unique_ptr<comm::Group> group;

  bool is_first() const { return rendezvous.rank == 0; }
};
Rank set_up_rank(const CommonOptions& options);

/// Calls `body`. In a group of several ranks an error of `body` ends the process at once (see
/// end_process()), because destroying the group's communicators would wait for the other ranks. The
/// launcher ends the other ranks. With one rank the error propagates.
void run_as_rank(const Rank& rank, const std::function<void()>& body);

/// The value of --dtype. Throws kUsage.
checkpoint::Dtype parse_dtype(const std::string& text);

}  // namespace xffl::train_app
