// Checkpoints inside a job: masters, moments and counts, from which a repeated job goes on with the
// same bits.
//
// `state_path` holds a folder "step-00000120" for each; it appears by rename when complete.
//   state.json                       what it belongs to, counts so far, sizes and hashes of the
//   files part-0001-of-0004.safetensors    masters, moments and what the groups' exchange keeps
//                                    (state_parts.h)
// "best-00000080" is the same of the best model that was measured, without the optimizer unless the
// next round needs it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "group_exchange.h"
#include "job_groups.h"
#include "state_parts.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

/// Where a job was, beside the buffers.
struct JobState {
  job::JobReport report;  // counts so far
  std::vector<double> nll_before;
  double best_validation = 0;  // of early stopping
  int64_t worse_validations = 0;
  int64_t measured_at = -1;    // steps done at the last whole validation amid the training
  std::vector<double> losses;  // of that validation
  double best_amid = 0;        // the lowest mean of those amid the training, and
  int64_t best_steps = -1;     // when it was: -1 before there is one
};

class JobStateStore {
 public:
  /// `group` is the world. All of these must outlive the store.
  JobStateStore(const job::JobSpec& spec, comm::Group& group, at::Device device, LoadedModel& model,
                Trainer& trainer, const JobGroups& groups, GroupExchange& exchange);

  /// Collective. Throws kIo on all ranks when one cannot write; what was there stays.
  void save(const JobState& state);

  /// Loads the newest complete checkpoint of this part of this round, of any attempt, if there is
  /// one; collective. One that belongs to something else, or lacks a file, is passed over with a
  /// warning.
  bool load(JobState& state);

  /// Keeps the model as it is, beside the checkpoints, in place of the best one before; collective.
  /// Throws kIo as save() does.
  void save_best(const JobState& state);
  /// Brings the model and all of `state` back to the best one, of `state.best_steps`; collective.
  /// False, with a warning, where it cannot be read.
  bool load_best(JobState& state);

  /// Removes all checkpoints; by one rank, when the job's result is there.
  void clear() const;

 private:
  std::filesystem::path folder(int64_t steps) const;
  std::filesystem::path best_folder(int64_t steps) const;
  std::vector<UnitBuffers> buffers() const;
  std::vector<UnitBuffers> best_buffers() const;
  std::string temporary_suffix() const;
  Json describe(const std::filesystem::path& folder, const JobState& state,
                const Json& counts) const;
  void remove_incomplete() const;
  void remove_old() const;
  void remove_old_best(int64_t best_steps) const;
  int64_t newest() const;
  void read(const std::filesystem::path& folder, const std::vector<UnitBuffers>& buffers,
            JobState& state);

  const job::JobSpec& spec_;
  comm::Group& group_;
  at::Device device_;
  LoadedModel& model_;
  Trainer& trainer_;
  const JobGroups& groups_;
  GroupExchange& exchange_;
  StateParts parts_;
};

}  // namespace xffl::train
