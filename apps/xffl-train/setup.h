// Set-up that the commands share: process, device, group of ranks, and options.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "commands.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/loaded_model.h"

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
/// end_process()): the destructors of the group's communicators would wait for the other ranks. The
/// launcher then ends the other ranks. With one rank the error propagates.
void run_as_rank(const Rank& rank, const std::function<void()>& body);

/// The value of an option: fp32, bf16 or fp16. Throws kUsage.
job::FloatType parse_float_type(const std::string& option, const std::string& text);

/// The options for loading a model for inference, with the adapter in a folder (empty: no adapter).
train::LoadOptions load_options(const Rank& rank, job::FloatType precision,
                                const std::string& adapter);

}  // namespace xffl::train_app
