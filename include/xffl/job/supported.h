// Which trainings the built-in trainer can do: asked when xffl.yaml is read, and again by the job.
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
  int on_a_machine = 1;  // as many as share one: the default size of hybrid shard groups
};

/// What is not supported, alone or together with other keys.
struct Unsupported {
  std::string key;      // of `training`, the first that the message names: "pipeline.stages"
  std::string message;  // names all of them, "training." in front
};

/// The first problem of a training with so many validation sets; a function of these alone.
std::optional<Unsupported> find_unsupported(const TrainingSpec& training,
                                            size_t num_validation_sets, const Ranks& ranks);

/// The number of ranks that shard together, of `data_ranks`, which work on the same model and no
/// other stage of it. Throws kConfig where shard_group_size does not go with them.
int shard_group_size(const TrainingSpec& training, int data_ranks, int on_a_machine);

/// Of a step on each data rank, the same on all: their collectives match. The last ones may be
/// empty on some.
int64_t num_micro_batches(const TrainingSpec& training, int num_data_ranks);

}  // namespace xffl::job
