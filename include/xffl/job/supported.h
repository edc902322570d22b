// The limits of the built-in trainer: config checks them when it reads xffl.yaml, and the job
// checks them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "xffl/job/job_spec.h"

namespace xffl::job {

/// The ranks of a job.
struct Ranks {
  int all = 1;
  int on_a_machine = 1;  // ranks of one machine: the default size of hybrid shard groups
};

/// A key that is not supported, alone or together with other keys.
struct Unsupported {
  std::string key;      // the first key of `training` in the message: "pipeline.stages"
  std::string message;  // names all keys, each with "training." in front
};

/// The first problem of a training with `num_validation_sets` validation sets. Pure.
std::optional<Unsupported> find_unsupported(const TrainingSpec& training,
                                            size_t num_validation_sets, const Ranks& ranks);

/// The number of ranks that shard together among the `data_ranks` of one pipeline stage. Throws
/// kConfig when shard_group_size does not divide `data_ranks`.
int shard_group_size(const TrainingSpec& training, int data_ranks, int on_a_machine);

/// The micro-batches of a step, the same number on all data ranks, so that their collectives match.
/// The last micro-batches may be empty on some ranks.
int64_t num_micro_batches(const TrainingSpec& training, int num_data_ranks);

}  // namespace xffl::job
