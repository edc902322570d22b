// How much memory a rank's part of a training will take, by what, before anything is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <climits>
#include <cstdint>
#include <optional>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_layout.h"
#include "xffl/train/stage_units.h"

namespace xffl::train {

/// Bytes of one rank. Parameters, masters, gradients and moments are exact: flat buffers that exist
/// as long as the training does. The other terms are estimates.
struct MemoryPlan {
  int64_t parameters = 0;  // what is computed with
  int64_t masters = 0;     // beside them: in float32, or what they lack of it
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t buffers = 0;  // units gathered and reduced at once, and what Gloo receives them in
  int64_t activations = 0;
  int64_t logits = 0;         // head_loss's chunk
  int64_t workspaces = 0;     // of cuBLAS, and of attention's backward on a GPU
  int64_t communicators = 0;  // NCCL's buffers
  int64_t context = 0;        // CUDA's, with loaded kernels: it exists before free memory is read
  int64_t host = 0;           // of these, in the host's memory
  int64_t pinning = 0;        // there beside them: pinned buffers have powers of two for sizes

  int64_t total() const {
    return exact() + buffers + activations + logits + workspaces + communicators + context;
  }
  int64_t exact() const { return parameters + masters + gradients + moments; }
  int64_t device() const { return total() - host; }
};

/// What a pipeline stage works on: its units, and the micro-batches that it keeps the activations
/// of.
struct StageLoad {
  UnitRange units{0, INT_MAX};
  int64_t in_flight = 1;
};

/// For micro-batches of at most `positions` tokens a sequence. The layout says how many shards
/// there are, and has the stage's units only.
MemoryPlan plan_memory(const checkpoint::LlamaConfig& config, const shard::FlatLayout& layout,
                       const job::TrainingSpec& training, int64_t positions,
                       const StageLoad& stage = {}, at::Device device = at::kCPU);

/// Adds what is frozen beside what that plan is of.
void add_frozen(MemoryPlan& plan, const shard::FlatLayout& frozen,
                const job::TrainingSpec& training, at::Device device = at::kCPU);

/// Adds the buffers of `count` communicators; nothing on a CPU, where Gloo's are part of `buffers`.
void add_communicators(MemoryPlan& plan, int64_t count, at::Device device);

/// A rank's share of the memory that is free before it takes any.
struct MemoryThere {
  int64_t host = 0;            // of this machine
  std::optional<int64_t> gpu;  // else all that a rank takes is the host's
};
MemoryThere memory_there(at::Device device, int ranks_on_machine);

/// Of a plan in the memory that is free.
enum class MemoryVerdict {
  kFits,
  kMayNotFit,  // with the estimates it needs more
  kCannotFit,  // the exact terms alone need more
};
/// Memory of the host that nothing tells (0) refuses nothing.
MemoryVerdict judge(const MemoryPlan& plan, const MemoryThere& there);

}  // namespace xffl::train
