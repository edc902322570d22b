#include "memory_plan.h"

#include <algorithm>
#include <bit>
#include <map>

#include "xffl/llama/head_loss.h"
#include "xffl/shard/optimizer.h"
#include "xffl/train/device.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {
namespace {

int64_t width_of(job::FloatType precision) { return precision == job::FloatType::kFloat32 ? 4 : 2; }
int64_t width_of(job::StateDtype dtype) { return dtype == job::StateDtype::kFloat32 ? 4 : 2; }

// The ranks gather, or reduce, two units at once. The units' buffers stay for the next units of
// the same size.
int64_t pooled_elements(const shard::FlatLayout& layout) {
  std::map<int64_t, int> units_of_size;
  for (const shard::UnitLayout& unit : layout.units()) ++units_of_size[unit.size];
  int64_t elements = 0;
  for (const auto& [size, count] : units_of_size) elements += size * std::min(count, 2);
  return elements;
}

// The bytes by which torch's allocator rounds the pinned buffers of a rank's parts of units,
// `width` bytes an element, up to powers of two.
int64_t pinning_of(const shard::FlatLayout& layout, int64_t num_parts, int64_t width) {
  int64_t bytes = 0;
  for (const shard::UnitLayout& unit : layout.units()) {
    const auto size = static_cast<uint64_t>(unit.size / num_parts * width);
    if (size > 0) bytes += static_cast<int64_t>(std::bit_ceil(size) - size);
  }
  return bytes;
}

// The elements that a block keeps for each token: the inputs of its norms, products and activation.
// Norms of heads keep queries and keys twice, before the norm and after RoPE.
int64_t block_elements(const checkpoint::LlamaConfig& config) {
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const bool has_qk_norms = config.family().norms(config).size() > 2;
  return 4 * config.hidden_size + 3 * queries + 4 * keys + 3 * config.intermediate_size +
         (has_qk_norms ? queries + keys : 0);
}

// The elements of block_elements() that cheap recomputation drops: outputs of two norms and SwiGLU.
int64_t cheap_elements(const checkpoint::LlamaConfig& config) {
  return 2 * config.hidden_size + config.intermediate_size;
}

// The elements that DoRA keeps in a block for each token: the results of the adapted layers before
// the magnitudes scale them.
int64_t dora_elements(const checkpoint::LlamaConfig& config, const job::Lora& lora) {
  if (lora.rank == 0 || !lora.weight_decomposed) return 0;
  int64_t elements = 0;
  for (const checkpoint::LinearLayer& layer : config.family().linear_layers(config))
    if (std::count(lora.target_modules.begin(), lora.target_modules.end(), layer.name) > 0)
      elements += layer.out;
  return elements;
}

// The elements that `blocks` blocks keep, and those of the block in progress.
int64_t kept_elements(const checkpoint::LlamaConfig& config, const job::TrainingSpec& training,
                      int64_t blocks) {
  const int64_t block = block_elements(config) + dora_elements(config, training.lora);
  const job::Recompute recompute = training.recompute;
  if (recompute == job::Recompute::kFull) return blocks * config.hidden_size + block;
  if (recompute == job::Recompute::kCheap)
    return blocks * (block - cheap_elements(config)) + cheap_elements(config);
  return blocks * block;
}

int64_t micro_batch_size(const job::TrainingSpec& training) {
  return std::min(training.micro_batch_size, training.batch_size);
}

int64_t activation_bytes(const checkpoint::LlamaConfig& config, const job::TrainingSpec& training,
                         int64_t positions, const StageLoad& stage) {
  const int64_t tokens = micro_batch_size(training) * positions;
  const int64_t width = width_of(training.precision);
  const int64_t blocks = std::min<int64_t>(stage.units.end, config.num_layers + 1) -
                         std::max<int64_t>(stage.units.first, 1);
  const int64_t kept =
      kept_elements(config, training, stage.in_flight * std::max<int64_t>(blocks, 0));
  return tokens * width * (kept + 4 * config.hidden_size);
}

int64_t logits_bytes(const checkpoint::LlamaConfig& config, const job::TrainingSpec& training,
                     int64_t positions, const StageLoad& stage, at::Device device) {
  if (stage.units.end <= config.num_layers + 1) return 0;
  const int64_t rows =
      llama::head_chunk_rows(device, micro_batch_size(training) * positions, config.vocab_size);
  return rows * config.vocab_size * width_of(training.precision);
}

// The last of several stages copies a tied head. It sends the gradient of a trained head to the
// first stage, which has a buffer for it.
void add_tied_head(MemoryPlan& plan, const checkpoint::LlamaConfig& config,
                   const job::TrainingSpec& training, const StageLoad& stage) {
  const bool is_first = stage.units.first == 0;
  const bool is_last = stage.units.end > config.num_layers + 1;
  if (!config.tie_word_embeddings || is_first == is_last) return;
  const int64_t elements = config.vocab_size * config.hidden_size;
  if (is_last) plan.parameters += elements * width_of(training.precision);
  if (stage.trains_embedding) plan.gradients += elements * width_of(training.gradient_dtype);
}

// CUDA's context and LibTorch's kernels, which CUDA loads at their first use.
constexpr int64_t kContextBytes = 700 << 20;
// On Hopper cuBLAS and cuBLASLt each have a workspace of 32 MiB for each thread that multiplies:
// the forward thread and autograd's thread.
constexpr int64_t kProductWorkspaceBytes = 2 * 2 * (32 << 20);
// NCCL takes a little over 4 MiB for each channel and peer, with two dozen channels.
constexpr int64_t kCommunicatorBytes = 400 << 20;

// Attention's backward sums the queries' gradients in float32.
int64_t workspace_bytes(const checkpoint::LlamaConfig& config, const job::TrainingSpec& training,
                        int64_t positions) {
  const int64_t tokens = micro_batch_size(training) * positions;
  return kProductWorkspaceBytes + tokens * config.num_heads * config.head_dim * 4;
}

// The bytes of masters for each element, beside the compute copy, as shard::FlatParameters keeps
// them.
struct MasterWidths {
  int64_t master = 0;
  int64_t remainder = 0;
  int64_t input = 0;  // FedProx's copy of the input model

  int64_t all() const { return master + remainder + input; }
};

MasterWidths master_widths(const job::TrainingSpec& training, const shard::Offload& offload) {
  const int64_t width = width_of(training.precision);
  const bool weights_too = training.masters != job::Masters::kFloat32 || width == 4;
  const bool one_copy = weights_too && offload.states == offload.parameters;
  return {one_copy ? 0 : (weights_too ? width : 4),
          training.masters == job::Masters::kSplit ? 2 : 0, training.proximal > 0 ? 4 : 0};
}

// The float32 masters of one unit during an exchange of weights that are stored in another type.
int64_t exchange_buffer(const job::TrainingSpec& training, const shard::FlatLayout& layout,
                        bool states_split) {
  if (training.groups.count == 1 || training.masters == job::Masters::kFloat32 ||
      training.groups.exchange == job::Exchange::kGradients)
    return 0;
  int64_t largest = 0;
  for (const shard::UnitLayout& unit : layout.units()) largest = std::max(largest, unit.size);
  return largest / (states_split ? layout.num_shards() : 1) * 4;
}

// The bytes that pinning adds; moments are not pinned.
int64_t pinning(const shard::FlatLayout& layout, const job::TrainingSpec& training,
                const shard::Offload& offload, int64_t num_parts) {
  const MasterWidths masters = master_widths(training, offload);
  int64_t bytes = 0;
  if (offload.states)
    for (const int64_t width :
         {masters.master, masters.remainder, width_of(training.gradient_dtype)})
      bytes += pinning_of(layout, num_parts, width);
  if (offload.parameters) bytes += pinning_of(layout, num_parts, width_of(training.precision));
  return bytes;
}

// The number of buffers of the outer optimizer: its anchor and its moments.
int64_t outer_buffers(const job::RankGroups& groups) {
  if (groups.count == 1 || groups.outer.kind == job::OuterOptimizer::kAverage) return 0;
  return groups.outer.kind == job::OuterOptimizer::kAdam ? 3 : 2;
}

}  // namespace

MemoryPlan plan_memory(const checkpoint::LlamaConfig& config, const shard::FlatLayout& layout,
                       const job::TrainingSpec& training, int64_t positions, const StageLoad& stage,
                       at::Device device) {
  const shard::Sharded sharded = to_sharded(training.sharding);
  const shard::Offload offload = to_offload(training.offload);
  const int64_t whole = layout.total_size();
  const int64_t part = whole / layout.num_shards();
  const int64_t width = width_of(training.precision);
  const bool split = layout.num_shards() > 1;
  const bool transient = (split && sharded.parameters) || offload.parameters;
  const bool states_split = split && sharded.states;
  const int64_t held = states_split ? part : whole;
  MemoryPlan plan;
  plan.parameters = (transient ? held : whole) * width;
  const MasterWidths masters = master_widths(training, offload);
  plan.masters = held * masters.all();
  plan.moments =
      held * (shard::optimizer_options(training).num_moments() * width_of(training.moment_dtype) +
              4 * outer_buffers(training.groups));
  const int64_t gradient_width = width_of(training.gradient_dtype);
  const bool gradients_split = split && sharded.gradients;
  plan.gradients = (gradients_split ? part : whole) * gradient_width;
  add_tied_head(plan, config, training, stage);
  if (transient) plan.buffers += pooled_elements(layout) * width;
  if (gradients_split) plan.buffers += pooled_elements(layout) * gradient_width;
  if (split && device.is_cpu()) plan.buffers += pooled_elements(layout) * gradient_width;
  plan.buffers += exchange_buffer(training, layout, states_split);
  plan.activations = activation_bytes(config, training, positions, stage);
  plan.logits = logits_bytes(config, training, positions, stage, device);
  if (offload.states) {
    // If the device holds whole gradients, the host holds the reduced gradients beside them.
    if (!gradients_split) plan.gradients += held * gradient_width;
    plan.host += plan.masters + plan.moments + held * gradient_width;
  }
  if (offload.parameters) plan.host += plan.parameters;
  if (device.is_cuda()) {
    plan.pinning = pinning(layout, training, offload, states_split ? layout.num_shards() : 1);
    plan.workspaces = workspace_bytes(config, training, positions);
    plan.context = kContextBytes;
  }
  return plan;
}

void add_frozen(MemoryPlan& plan, const shard::FlatLayout& frozen,
                const job::TrainingSpec& training, at::Device device) {
  const int64_t width = width_of(training.precision);
  const bool split = frozen.num_shards() > 1 && to_sharded(training.sharding).parameters;
  const bool on_host = to_offload(training.offload).parameters;
  const int64_t bytes = frozen.total_size() / (split ? frozen.num_shards() : 1) * width;
  plan.parameters += bytes;
  if (split || on_host) plan.buffers += pooled_elements(frozen) * width;
  if (!on_host) return;
  plan.host += bytes;
  if (device.is_cuda()) plan.pinning += pinning_of(frozen, split ? frozen.num_shards() : 1, width);
}

void add_communicators(MemoryPlan& plan, int64_t count, at::Device device) {
  if (device.is_cuda()) plan.communicators += count * kCommunicatorBytes;
}

FreeMemory free_memory(at::Device device, int ranks_on_machine, int ranks_on_gpu) {
  FreeMemory free;
  free.host = available_memory_bytes(at::kCPU) / ranks_on_machine;
  if (device.is_cuda()) free.gpu = available_memory_bytes(device) / ranks_on_gpu;
  return free;
}

MemoryVerdict judge(const MemoryPlan& plan, const FreeMemory& free) {
  using enum MemoryVerdict;
  const int64_t exact_on_host = free.gpu ? plan.host : plan.exact();
  if ((free.host > 0 && exact_on_host > free.host) ||
      (free.gpu && plan.exact() - plan.host > *free.gpu))
    return kCannotFit;
  const int64_t on_host = free.gpu ? plan.host + plan.pinning : plan.total();
  const bool gpu_holds_it = !free.gpu || plan.device() - plan.context <= *free.gpu;
  return on_host <= free.host && gpu_holds_it ? kFits : kMayNotFit;
}

}  // namespace xffl::train
