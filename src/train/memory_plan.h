// Predicts the memory of a rank's part of a training, by purpose, before any allocation.
#pragma once

#include <ATen/core/Tensor.h>

#include <climits>
#include <cstdint>
#include <optional>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_layout.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

/// The bytes of one rank. Parameters, masters, gradients and moments are exact: they are flat
/// buffers that exist during the whole training. The other terms are estimates.
struct MemoryPlan {
  int64_t parameters = 0;  // in the compute type
  int64_t masters = 0;     // float32 masters, or the remainders of split masters
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t buffers = 0;  // units gathered and reduced at once, and Gloo's receive buffers
  int64_t activations = 0;
  int64_t logits = 0;         // head_loss's chunk
  int64_t workspaces = 0;     // cuBLAS and attention's backward, on a GPU
  int64_t communicators = 0;  // NCCL's buffers
  int64_t context = 0;        // CUDA's, with kernels; exists before free memory is read
  int64_t host = 0;           // the part of these terms in host memory
  int64_t pinning = 0;        // added by rounding pinned buffers up to powers of two

  int64_t total() const {
    return exact() + buffers + activations + logits + workspaces + communicators + context;
  }
  int64_t exact() const { return parameters + masters + gradients + moments; }
  int64_t device() const { return total() - host; }
};

/// A pipeline stage's units, and the number of micro-batches whose activations it keeps.
struct StageLoad {
  UnitRange units{0, INT_MAX};
  int64_t in_flight = 1;
  bool trains_embedding = true;
};

/// Plans for micro-batches of at most `positions` tokens a sequence. `layout` has the number of
/// shards and the stage's units only.
MemoryPlan plan_memory(const checkpoint::LlamaConfig& config, const shard::FlatLayout& layout,
                       const job::TrainingSpec& training, int64_t positions,
                       const StageLoad& stage = {}, at::Device device = at::kCPU);

/// Adds the frozen parameters.
void add_frozen(MemoryPlan& plan, const shard::FlatLayout& frozen,
                const job::TrainingSpec& training, at::Device device = at::kCPU);

/// Adds the buffers of `count` communicators. Adds nothing on a CPU, because `buffers` includes
/// Gloo's.
void add_communicators(MemoryPlan& plan, int64_t count, at::Device device);

/// A rank's share of the free memory before its allocations.
struct FreeMemory {
  int64_t host = 0;            // 0: unknown
  std::optional<int64_t> gpu;  // empty on a CPU: all terms are in host memory
};
FreeMemory free_memory(at::Device device, int ranks_on_machine, int ranks_on_gpu = 1);

enum class MemoryVerdict {
  kFits,
  kMayNotFit,  // exact terms and estimates exceed the free memory
  kCannotFit,  // the exact terms alone exceed the free memory
};
/// Whether a plan fits the free memory. Unknown host memory never gives kCannotFit.
MemoryVerdict judge(const MemoryPlan& plan, const FreeMemory& free);

}  // namespace xffl::train
