// Checkpoints inside a job: masters, moments and counts, from which a repeated job goes on with the
// same bits.
//
// `state_path` holds a folder "step-00000120" for each; it appears by rename when complete.
//   state.json                       what it belongs to, counts so far, sizes of the files
//   part-0001-of-0004.safetensors    unit0000.master, .first, .second, unit0001...: float32, each
//                                    this part's elements of the unit's flat buffer
// Written by the ranks that hold the parts, read by any number of ranks with any sharding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

/// Where a job was, beside the buffers.
struct JobState {
  job::JobReport report;  // counts so far
  std::vector<double> nll_before;
};

class JobStateStore {
 public:
  /// All of these must outlive the store.
  JobStateStore(const job::JobSpec& spec, comm::Group& group, at::Device device, LoadedModel& model,
                Trainer& trainer)
      : spec_(spec), group_(group), device_(device), model_(model), trainer_(trainer) {}

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
  void write_part(const std::filesystem::path& folder) const;
  void write_state(const std::filesystem::path& folder, const JobState& state) const;
  void remove_old() const;
  int64_t newest() const;
  void read(const std::filesystem::path& folder, JobState& state);
  void read_parts(const std::filesystem::path& folder, int num_parts);

  const job::JobSpec& spec_;
  comm::Group& group_;
  at::Device device_;
  LoadedModel& model_;
  Trainer& trainer_;
};

}  // namespace xffl::train
