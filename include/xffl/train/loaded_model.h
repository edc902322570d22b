// A LLaMA, or a pipeline stage's units of a LLaMA, loaded from a folder into flat buffers, whole or
// sharded. One set of buffers holds the trained parameters; another set, with values only, holds
// the frozen parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <climits>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/model.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/dataset.h"
#include "xffl/train/pipeline.h"
#include "xffl/train/tied_head.h"

namespace xffl::train {

/// The groups of ranks for a sharding mode, each with its own connections.
class ShardGroups {
 public:
  /// Collective over `world`. Throws kConfig if `training.shard_group_size` does not divide the
  /// world size, or is set for a mode that shards over all ranks.
  ShardGroups(comm::Group& world, const job::TrainingSpec& training, int local_world_size);

  shard::Groups groups() const { return {gather_.get(), reduce_.get(), replicas_.get()}; }
  int num_shards() const { return gather_->size(); }

 private:
  std::unique_ptr<comm::Group> gather_, reduce_, replicas_;
};

shard::Sharded to_sharded(job::Sharding sharding);
shard::Offload to_offload(job::Offload offload);
at::ScalarType to_dtype(job::StateDtype dtype);
at::ScalarType to_dtype(job::FloatType type);
checkpoint::Dtype to_file_dtype(job::FloatType type);

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
  int stage = 0;         // index in the pipeline
  int num_stages = 1;
  /// If set, the trainer freezes the model and trains an adapter. The adapter comes from the folder
  /// `adapter`; if `adapter` is empty, the trainer initializes a fresh adapter with `lora_seed`.
  std::optional<checkpoint::LoraConfig> lora{};
  std::filesystem::path adapter{};
  uint64_t lora_seed = 0;
  /// Patterns, as in fnmatch(3), of the names of frozen parameters. An adapter's parameters have
  /// the name of the matrix that they adapt, and names of their own:
  /// "model.layers.0.self_attn.q_proj.lora_A.weight".
  std::vector<std::string> freeze{};
};

struct LoadedModel {
  checkpoint::LlamaConfig config;
  std::optional<checkpoint::LoraConfig> lora;
  std::vector<UnitRange> stages;  // each pipeline stage's units
  int stage = 0;
  std::vector<llama::ParameterSpec> specs;  // of `parameters`, in order, of all stages
  /// The trained parameters; without LoadOptions::with_gradients they have values only. Parameters
  /// of other stages have no elements.
  std::unique_ptr<shard::FlatParameters> parameters;
  std::vector<llama::ParameterSpec> frozen_specs;
  std::unique_ptr<shard::FlatParameters> frozen;  // null without frozen parameters
  std::unique_ptr<llama::Model> model;
  /// Set in the first and the last of several stages if the head is tied.
  std::unique_ptr<TiedHead> tied_head;

  /// An uninitialized tensor for this batch's activations between two blocks (B x T x hidden).
  at::Tensor activation_for(const Batch& batch) const;
};

/// The layout of a LLaMA's parameters: weight decay applies to matrices, not to norms and biases.
/// Parameters outside `units` have no elements.
std::vector<shard::Parameter> flat_parameters_of(const std::vector<llama::ParameterSpec>& specs,
                                                 UnitRange units = {0, INT_MAX});

/// Returns the LoadedModel of load_model() without buffers and model. Throws the same errors as
/// load_model().
LoadedModel outline_model(const std::filesystem::path& folder, const LoadOptions& options);

/// Loads a model; each rank reads its own part of each tensor. Throws the errors of reading and of
/// stage_units(). Throws kRejected if the adapter does not fit the model, kConfig if a pattern of
/// `freeze` matches no parameter or all parameters are frozen.
LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options);

/// The values of parameters before training.
class ParameterSource {
 public:
  /// The parameters of the model in `folder`, and with LoRA those of the adapter, from its files or
  /// fresh.
  ParameterSource(const std::filesystem::path& folder, const LoadOptions& options);

  /// Reads a parameter's elements, beginning with `begin`. Thread-safe.
  void read(const llama::ParameterSpec& spec, int64_t begin, std::span<float> out) const;
  /// The files that hold a parameter; null for a fresh adapter's.
  const checkpoint::ModelFolder* files_of(const llama::ParameterSpec& spec) const;

 private:
  checkpoint::ModelFolder base_;
  std::optional<checkpoint::ModelFolder> adapter_;
  uint64_t seed_ = 0;
};

/// The load options of a job's training.
LoadOptions load_options(const job::JobSpec& spec, at::Device device, const shard::Groups& groups);

int64_t num_trained(const LoadedModel& loaded);
bool trains_embedding(const LoadedModel& loaded);

}  // namespace xffl::train
