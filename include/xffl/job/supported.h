// The limits of the built-in trainer: config checks them when it reads xffl.yaml, and the job
// again.
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
  std::string key;      // of `training`, the first that the message names: "pipeline.stages"
  std::string message;  // names all of them, "training." in front
};

/// The first problem of a training with so many validation sets; a function of these alone.
std::optional<Unsupported> find_unsupported(const TrainingSpec& training,
                                            size_t num_validation_sets, const Ranks& ranks);

/// The number of ranks that shard together among the `data_ranks` of one pipeline stage. Throws
/// kConfig when shard_group_size does not divide them.
int shard_group_size(const TrainingSpec& training, int data_ranks, int on_a_machine);

/// The micro-batches of a step, the same number on all data ranks, so that their collectives match.
/// The last ones may be empty on some ranks.
int64_t num_micro_batches(const TrainingSpec& training, int num_data_ranks);

}  // namespace xffl::job
