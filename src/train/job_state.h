// Checkpoints inside a job: masters, moments and counts, from which a repeated job goes on with the
// same bits.
//
// `state_path` holds a folder "step-00000120" for each; it appears by rename when complete.
//   state.json                       what it belongs to, counts so far, sizes of the files
//   part-0001-of-0004.safetensors    masters, moments and what the groups' exchange keeps
//                                    (state_parts.h)
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
  int64_t measured_at = -1;  // steps done at the last whole validation amid the training
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

  /// Removes all checkpoints; by one rank, when the job's result is there.
  void clear() const;

 private:
  std::filesystem::path folder(int64_t steps) const;
  std::vector<UnitBuffers> buffers() const;
  std::string temporary_suffix() const;
  Json describe(const std::filesystem::path& folder, const JobState& state,
                const Json& counts) const;
  void remove_incomplete() const;
  void remove_old() const;
  int64_t newest() const;
  void read(const std::filesystem::path& folder, JobState& state);

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
