// The optimizer state between two rounds, which stays at the facility.
//
// `spec.optimizer_path` names the state that an earlier round's job saved, or "none"; this job
// saves its own state beside it. A state is a folder "r0002-<nonce>", named after the attempt that
// saved it: a round thus continues from the attempt whose update was accepted. The files are those
// of a checkpoint (checkpoint_files.h); the folder appears by rename when complete.
//   state.json                       the attempt, the layout of the buffers, the files
//   part-0001-of-0004.safetensors    the moments, and those of the groups' outer optimizer
// Saving removes the states of rounds before the previous one.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint_files.h"
#include "job_groups.h"
#include "trainer.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

class OptimizerState {
 public:
  /// `group` is the world. All arguments must outlive this object. Does nothing if
  /// spec.optimizer_path is empty.
  OptimizerState(const job::JobSpec& spec, comm::Group& group, at::Device device,
                 const LoadedModel& model, Trainer& trainer, const JobGroups& groups);

  /// Collective. If the state cannot be used, training starts with zero moments and logs a warning;
  /// rank 0 then returns the printable reason. Otherwise the result is empty.
  std::string load();

  /// Collective. A failure is only logged: the job's update is valid without the state.
  void save() const;

 private:
  std::vector<UnitBuffers> buffers() const;
  std::filesystem::path own_folder() const;
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
  CheckpointParts parts_;
};

}  // namespace xffl::train
