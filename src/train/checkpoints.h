// A job's checkpoints, and the optimizer state between two rounds, which stays at the facility. A
// repeated job resumes from its checkpoints with the same bits. checkpoint_files.h describes the
// files of checkpoints and states. A folder appears by rename when complete.
//
// `state_path` holds a folder for each checkpoint:
//   step-00000120/   a checkpoint after 120 steps
//   best-00000080/   the model with the lowest validation loss, without the optimizer's moments
//                    unless the next round needs them
// A checkpoint's state.json has the job's fingerprint, counts, sizes and hashes of the parts. A
// checkpoint's parts hold masters, moments and the buffers of the groups' exchange.
//
// `optimizer_path` names the state that an earlier round's job saved, or "none"; this job saves its
// own state beside that state. A state is a folder "r0002-<nonce>", named after the attempt that
// saved the state. A round thus continues from the attempt whose update was accepted. A state's
// state.json has the attempt, the layout of the buffers and the files. A state's parts hold the
// moments, and the moments of the groups' outer optimizer. Saving removes the states of rounds
// before the previous round.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint_files.h"
#include "trainer.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/evaluate.h"

namespace xffl::train {

/// The training state beside the buffers.
struct TrainingState {
  job::JobReport report;       // counts so far
  Scores before;               // of the job's input model on the validation sets
  double best_validation = 0;  // the lowest mean loss, for early stopping
  int64_t worse_validations = 0;
  int64_t measured_at = -1;  // steps at the last complete mid-training validation
  Scores scores;             // of that validation
  double best_loss = 0;      // the lowest mean loss of mid-training validations
  int64_t best_steps = -1;   // steps at that validation; -1: none yet
};

class Checkpoints {
 public:
  /// `group` is the world. All arguments must outlive this object.
  Checkpoints(const job::JobSpec& spec, comm::Group& group, at::Device device, LoadedModel& model,
              Trainer& trainer, const JobGroups& groups)
      : spec_(spec),
        group_(group),
        device_(device),
        model_(model),
        trainer_(trainer),
        groups_(groups),
        parts_(groups, model) {}

  /// Saves a checkpoint of the model, the optimizer and `state`; collective. Throws kIo on all
  /// ranks if one rank cannot write; earlier checkpoints stay.
  void save(const TrainingState& state);

  /// Loads the newest usable checkpoint of this part of this round, from any attempt; collective.
  /// Returns false if no checkpoint exists. Skips checkpoints of another job and damaged
  /// checkpoints, and logs a warning. Throws kIo if the folder, or each of the other checkpoints,
  /// cannot be read.
  bool load(TrainingState& state);

  /// Saves the current model as the best snapshot, which replaces the previous one; collective.
  /// Throws kIo as save() does.
  void save_best(const TrainingState& state);
  /// Restores the model and `state` from the best snapshot, of `state.best_steps`; collective.
  /// Returns false and logs a warning if the snapshot cannot be read.
  bool load_best(TrainingState& state);

  /// Removes all checkpoints. One rank calls clear() after the job's result is written.
  void clear() const;

  /// Loads the optimizer state of the previous round, unless spec.optimizer_path is empty or
  /// "none"; collective. If the state cannot be used, training starts with zero moments and logs a
  /// warning, and rank 0 returns the printable reason. Otherwise the result is empty.
  std::string load_optimizer();
  /// Saves the optimizer state for the next round, unless spec.optimizer_path is empty; collective.
  /// A failure is only logged: the job's update is valid without the state.
  void save_optimizer() const;

 private:
  std::filesystem::path folder(const char* prefix, int64_t steps) const;
  std::filesystem::path own_optimizer_folder() const;
  std::vector<UnitBuffers> buffers() const;
  void append_moments(std::vector<UnitBuffers>& all) const;
  std::vector<UnitBuffers> best_buffers() const;
  std::vector<UnitBuffers> optimizer_buffers() const;
  Json optimizer_description() const;
  std::string optimizer_problem(const std::filesystem::path& folder) const;
  void write(const std::filesystem::path& target, const std::string& suffix,
             const std::vector<UnitBuffers>& buffers, const std::function<Json()>& description,
             const std::function<bool()>& may_stay = {}) const;
  Json read(const std::filesystem::path& source, const std::vector<UnitBuffers>& buffers) const;
  void read_state(const std::filesystem::path& source, const std::vector<UnitBuffers>& buffers,
                  TrainingState& state) const;
  bool is_usable(const std::filesystem::path& folder, const char* warning, std::string& problem,
                 const std::function<std::string()>& find_problem) const;
  std::string temporary_suffix() const;
  void remove_incomplete() const;
  void remove_old(int64_t newest) const;
  void remove_old_best(int64_t best_steps) const;
  void remove_old_optimizers() const;
  int64_t newest() const;

  const job::JobSpec& spec_;
  comm::Group& group_;
  at::Device device_;
  LoadedModel& model_;
  Trainer& trainer_;
  const JobGroups& groups_;
  CheckpointParts parts_;
};

}  // namespace xffl::train
