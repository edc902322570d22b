// The optimizer's moments between two rounds: they stay at the facility.
//
// `spec.optimizer_path` names the state to begin with, which an earlier round's job has left; this
// job leaves its own beside it. Both are folders "r0002-<nonce>" of the attempt that left them, so
// that a round begins where the update that was accepted for the round before ended, whatever other
// attempts have left; "none" where there is nothing to begin with.
//   state.json                       who left it, the layout of the buffers, the files
//   part-0001-of-0004.safetensors    the moments, and those of the groups' exchange (state_parts.h)
// It appears by rename when complete. What rounds before the last have left is removed.
#pragma once

#include <filesystem>
#include <string>

#include "group_exchange.h"
#include "job_groups.h"
#include "state_parts.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

class OptimizerState {
 public:
  /// `group` is the world. All of these must outlive this object. Does nothing where
  /// spec.optimizer_path is empty.
  OptimizerState(const job::JobSpec& spec, comm::Group& group, at::Device device,
                 const LoadedModel& model, Trainer& trainer, const JobGroups& groups,
                 GroupExchange& exchange);

  /// Collective. What cannot be used is told in a warning, and training begins with new moments:
  /// then the first rank gets the reason, printable; else nothing.
  std::string load();

  /// Collective. What cannot be written is told in a warning: the job's result counts without it.
  void save() const;

 private:
  std::vector<UnitBuffers> buffers() const;
  std::filesystem::path mine() const;
  Json description() const;
  std::string problem_of(const std::filesystem::path& folder) const;
  void write(const std::filesystem::path& folder) const;
  void read(const std::filesystem::path& folder);
  void remove_old() const;

  const job::JobSpec& spec_;
  comm::Group& group_;
  at::Device device_;
  const LoadedModel& model_;
  Trainer& trainer_;
  const JobGroups& groups_;
  GroupExchange& exchange_;
  StateParts parts_;
};

}  // namespace xffl::train
