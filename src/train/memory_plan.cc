#include "memory_plan.h"

#include <algorithm>

#include "xffl/train/loaded_model.h"

namespace xffl::train {
namespace {

constexpr int64_t kLogitsBytes = 64 << 20;  // head_loss's chunk

int64_t width_of(job::FloatType precision) { return precision == job::FloatType::kFloat32 ? 4 : 2; }

// Two of the largest units are gathered, or reduced, at once.
int64_t two_units(const shard::FlatLayout& layout) {
  std::vector<int64_t> sizes;
  for (const shard::UnitLayout& unit : layout.units()) sizes.push_back(unit.size);
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes[0] + (sizes.size() > 1 ? sizes[1] : 0);
}

// Elements that a block keeps for each token: the inputs of its norms, products and activation.
int64_t block_elements(const checkpoint::LlamaConfig& config) {
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  return 4 * config.hidden_size + 3 * queries + 4 * keys + 3 * config.intermediate_size;
}

// Of these, the outputs of two norms and of SwiGLU.
int64_t cheap_elements(const checkpoint::LlamaConfig& config) {
  return 2 * config.hidden_size + config.intermediate_size;
}

// Of `blocks` blocks, and of one that is worked on.
int64_t kept_elements(const checkpoint::LlamaConfig& config, job::Recompute recompute,
                      int64_t blocks) {
  const int64_t block = block_elements(config);
  switch (recompute) {
    case job::Recompute::kFull:
      return blocks * config.hidden_size + block;
    case job::Recompute::kCheap:
      return blocks * (block - cheap_elements(config)) + cheap_elements(config);
    case job::Recompute::kNone:
      break;
  }
  return blocks * block;
}

int64_t activation_bytes(const checkpoint::LlamaConfig& config, const job::TrainingSpec& training,
                         int64_t positions, const StageLoad& stage) {
  const int64_t tokens = training.micro_batch_size * positions;
  const int64_t width = width_of(training.precision);
  const int64_t blocks = std::min<int64_t>(stage.units.end, config.num_layers + 1) -
                         std::max<int64_t>(stage.units.first, 1);
  const int64_t kept =
      kept_elements(config, training.recompute, stage.in_flight * std::max<int64_t>(blocks, 0));
  const int64_t logits = stage.units.end > config.num_layers + 1 ? kLogitsBytes : 0;
  return tokens * width * (kept + 4 * config.hidden_size) + logits;
}

// The last exchange's model and the outer optimizer's moments.
int64_t outer_buffers(const job::RankGroups& groups) {
  if (groups.count == 1 || groups.outer.kind == job::OuterOptimizer::kAverage) return 0;
  return groups.outer.kind == job::OuterOptimizer::kAdam ? 3 : 2;
}

}  // namespace

MemoryPlan plan_memory(const checkpoint::LlamaConfig& config, const shard::FlatLayout& layout,
                       const job::TrainingSpec& training, int64_t positions,
                       const StageLoad& stage) {
  const shard::Sharded sharded = to_sharded(training.sharding);
  const shard::Offload offload = to_offload(training.offload);
  const int64_t whole = layout.total_size();
  const int64_t part = whole / layout.num_shards();
  const int64_t width = width_of(training.precision);
  const bool split = layout.num_shards() > 1;
  const bool transient = (split && sharded.parameters) || offload.parameters;
  const int64_t held = split && sharded.states ? part : whole;
  MemoryPlan plan;
  plan.parameters = (transient ? held : whole) * width;
  const bool one_copy = width == 4 && offload.states == offload.parameters;
  plan.masters = one_copy ? 0 : held * 4;
  if (training.proximal > 0) plan.masters += held * 4;  // as they were given
  plan.moments = held * (8 + 4 * outer_buffers(training.groups));
  plan.gradients = (split && sharded.gradients ? part : whole) * 4;
  if (transient) plan.buffers += two_units(layout) * width;
  if (split && sharded.gradients) plan.buffers += two_units(layout) * 4;
  plan.activations = activation_bytes(config, training, positions, stage);
  if (offload.states) plan.host += plan.masters + plan.moments;
  if (offload.parameters) plan.host += plan.parameters;
  return plan;
}

void add_frozen(MemoryPlan& plan, const shard::FlatLayout& frozen,
                const job::TrainingSpec& training) {
  const int64_t width = width_of(training.precision);
  const bool split = frozen.num_shards() > 1 && to_sharded(training.sharding).parameters;
  const bool on_host = to_offload(training.offload).parameters;
  const int64_t bytes = frozen.total_size() / (split ? frozen.num_shards() : 1) * width;
  plan.parameters += bytes;
  if (split || on_host) plan.buffers += two_units(frozen) * width;
  if (on_host) plan.host += bytes;
}

}  // namespace xffl::train
