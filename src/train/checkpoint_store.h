// Checkpoints inside a job: masters, moments and counts. A repeated job resumes from them with the
// same bits.
//
// `state_path` holds a folder for each checkpoint, which appears by rename when complete.
//   step-00000120/   a checkpoint after 120 steps
//   best-00000080/   the model with the lowest validation loss, without the optimizer's moments
//                    unless the next round needs them
// A folder holds (checkpoint_files.h):
//   state.json                       the job's fingerprint, counts, sizes and hashes of the parts
//   part-0001-of-0004.safetensors    masters, moments and the buffers of the groups' exchange
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint_files.h"
#include "job_groups.h"
#include "trainer.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"

namespace xffl::train {

/// The training state beside the buffers.
struct TrainingState {
  job::JobReport report;  // counts so far
  std::vector<double> nll_before;
  double best_validation = 0;  // the lowest mean loss, for early stopping
  int64_t worse_validations = 0;
  int64_t measured_at = -1;    // steps at the last complete mid-training validation
  std::vector<double> losses;  // of that validation
  double best_loss = 0;        // the lowest mean loss of mid-training validations
  int64_t best_steps = -1;     // steps at that validation; -1: none yet
};

class CheckpointStore {
 public:
  /// `group` is the world. All arguments must outlive the store.
  CheckpointStore(const job::JobSpec& spec, comm::Group& group, at::Device device,
                  LoadedModel& model, Trainer& trainer, const JobGroups& groups);

  /// Saves a checkpoint of the model, the optimizer and `state`; collective. Throws kIo on all
  /// ranks if one rank cannot write; earlier checkpoints stay.
  void save(const TrainingState& state);

  /// Loads the newest usable checkpoint of this part of this round, from any attempt; collective.
  /// False if there is none. Checkpoints of another job and damaged checkpoints are skipped with a
  /// warning.
  bool load(TrainingState& state);

  /// Saves the current model as the best snapshot, which replaces the previous one; collective.
  /// Throws kIo as save() does.
  void save_best(const TrainingState& state);
  /// Restores the model and `state` from the best snapshot, of `state.best_steps`; collective.
  /// False, with a warning, if the snapshot cannot be read.
  bool load_best(TrainingState& state);

  /// Removes all checkpoints; called by one rank after the job's result is written.
  void clear() const;

 private:
  std::filesystem::path folder(int64_t steps) const;
  std::filesystem::path best_folder(int64_t steps) const;
  std::vector<UnitBuffers> buffers() const;
  std::vector<UnitBuffers> best_buffers() const;
  std::string temporary_suffix() const;
  Json describe(const std::filesystem::path& folder, const TrainingState& state,
                const Json& counts) const;
  void remove_incomplete() const;
  void remove_old() const;
  void remove_old_best(int64_t best_steps) const;
  int64_t newest() const;
  void read(const std::filesystem::path& folder, const std::vector<UnitBuffers>& buffers,
            TrainingState& state);

  const job::JobSpec& spec_;
  comm::Group& group_;
  at::Device device_;
  LoadedModel& model_;
  Trainer& trainer_;
  const JobGroups& groups_;
  CheckpointParts parts_;
};

}  // namespace xffl::train
