// A LLaMA in flat buffers, whole or in shards, or a pipeline stage's units of it, loaded from a
// folder: what is trained in one set of buffers, what is frozen in another that has values only.
#pragma once

#include <ATen/core/Tensor.h>

#include <climits>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/model.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/stage_units.h"

namespace xffl::train {

/// The groups of ranks that a way of sharding needs, each with connections of its own.
class ShardGroups {
 public:
  /// Collective over `world`. Throws kConfig when `training.shard_group_size` does not divide the
  /// world, or is given for a mode that shards over all ranks.
  ShardGroups(comm::Group& world, const job::TrainingSpec& training, int local_world_size);

  shard::Groups groups() const { return {gather_.get(), reduce_.get(), replicas_.get()}; }
  int num_shards() const { return gather_->size(); }

 private:
  std::unique_ptr<comm::Group> gather_, reduce_, replicas_;
};

shard::Sharded to_sharded(job::Sharding sharding);
shard::Offload to_offload(job::Offload offload);
shard::Masters to_masters(job::Masters masters);
at::ScalarType to_dtype(job::StateDtype dtype);
llama::Recompute to_recompute(job::Recompute recompute);

struct LoadOptions {
  at::Device device = at::kCPU;
  job::FloatType precision = job::FloatType::kFloat32;
  job::Masters masters = job::Masters::kFloat32;
  job::StateDtype gradient_dtype = job::StateDtype::kFloat32;
  bool with_gradients = false;
  job::Sharding sharding = job::Sharding::kNone;
  job::Offload offload = job::Offload::kNone;
  job::Recompute recompute = job::Recompute::kNone;
  shard::Groups groups;  // must outlive the model
  int stage = 0;         // of the pipeline
  int num_stages = 1;
  /// With an adapter beside the model, which is then frozen: that of the folder `adapter`, or, when
  /// it is empty, a fresh one of `lora_seed`.
  std::optional<checkpoint::LoraConfig> lora{};
  std::filesystem::path adapter{};
  uint64_t lora_seed = 0;
  /// Patterns over parameters' names, as fnmatch(3)'s: not trained.
  std::vector<std::string> freeze{};
};

struct LoadedModel {
  checkpoint::LlamaConfig config;
  std::optional<checkpoint::LoraConfig> lora;
  std::vector<UnitRange> stages;  // each pipeline stage's units
  int stage = 0;
  std::vector<llama::ParameterSpec> specs;  // of `parameters`, in order, of all stages
  /// Trained; all of it without gradients. Parameters of other stages have no elements here.
  std::unique_ptr<shard::FlatParameters> parameters;
  std::vector<llama::ParameterSpec> frozen_specs;
  std::unique_ptr<shard::FlatParameters> frozen;  // null when there is nothing frozen
  std::unique_ptr<llama::Model> model;
};

/// The layout of a LLaMA's parameters: matrices decay, norms and biases do not. Those of units that
/// are not in `units` have no elements.
std::vector<shard::Parameter> flat_parameters_of(const std::vector<llama::ParameterSpec>& specs,
                                                 UnitRange units = {0, INT_MAX});

/// What load_model() will hold, without any of it: no buffers and no model. Throws the same.
LoadedModel outline_model(const std::filesystem::path& folder, const LoadOptions& options);

/// Each rank reads its own part of each tensor. Throws what reading and stage_units() do; kRejected
/// when the adapter is not one of this model, kConfig when a pattern of `freeze` matches nothing or
/// all is frozen.
LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options);

/// What a job's training asks for.
LoadOptions load_options(const job::JobSpec& spec, at::Device device, const shard::Groups& groups);

int64_t num_trained(const LoadedModel& loaded);

}  // namespace xffl::train
