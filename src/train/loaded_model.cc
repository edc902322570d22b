#include "xffl/train/loaded_model.h"

#include <torch/types.h>

#include <string>

#include "xffl/base/error.h"
#include "xffl/llama/weights.h"

namespace xffl::train {
namespace {

at::ScalarType compute_dtype(job::FloatType precision) {
  switch (precision) {
    case job::FloatType::kBfloat16:
      return at::kBFloat16;
    case job::FloatType::kFloat16:
      return at::kHalf;
    case job::FloatType::kFloat32:
      break;
  }
  return at::kFloat;
}

bool is_hybrid(job::Sharding sharding) {
  return sharding == job::Sharding::kHybrid || sharding == job::Sharding::kHybridZero2;
}

std::vector<int> every(int first, int count, int stride) {
  std::vector<int> members;
  for (int i = 0; i < count; ++i) members.push_back(first + i * stride);
  return members;
}

// The ranks that shard together are neighbours, so that a node's GPUs can be a group.
int shard_group_size(int world_size, const job::TrainingSpec& training, int local_world_size) {
  const std::string mode(job::to_string(training.sharding));
  const int wanted = static_cast<int>(training.shard_group_size);
  if (!is_hybrid(training.sharding)) {
    if (wanted == 0 || wanted == world_size) return world_size;
    throw Error(ErrorKind::kConfig, "training.shard_group_size is " + std::to_string(wanted) +
                                        ", but sharding '" + mode + "' shards over all " +
                                        std::to_string(world_size) +
                                        " ranks: leave it out, or use hybrid or hybrid_zero2");
  }
  const int size = wanted == 0 ? local_world_size : wanted;
  if (size < 1 || world_size % size != 0) {
    throw Error(ErrorKind::kConfig, "training.shard_group_size is " + std::to_string(size) +
                                        ", which does not divide the " +
                                        std::to_string(world_size) + " ranks of this job");
  }
  return size;
}

// Makes a unit's weights ready for the model, and takes their gradients from it.
llama::UnitHooks make_hooks(shard::FlatParameters& parameters, llama::Model& model) {
  const auto enter = [&parameters, &model](int unit, llama::UnitUse use) {
    const size_t first = model.unit_begin(unit);
    const std::span<llama::Weight> weights = model.weights(unit);
    if (use.values) {
      parameters.gather(unit);
      // Ahead: the next block forward or backward. The embedding's values are not read backward.
      const int next = use.gradients ? unit - 1 : unit + 1;
      if (next >= 1 && next < parameters.num_units()) parameters.prefetch(next);
      for (size_t i = 0; i < weights.size(); ++i) weights[i].value = parameters.compute(first + i);
    }
    if (!use.gradients) return;
    const bool anew = parameters.open_gradients(unit);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i].gradient = parameters.gradient(first + i);
      if (anew) weights[i].clear();
    }
  };
  const auto leave = [&parameters, &model](int unit, llama::UnitUse use) {
    if (use.gradients) {
      for (llama::Weight& weight : model.weights(unit)) weight.finish();
      parameters.close_gradients(unit);
    }
    if (use.values) parameters.release(unit);
  };
  return {enter, leave};
}

void read_masters(const checkpoint::ModelFolder& files, const LoadedModel& loaded) {
  for (size_t i = 0; i < loaded.specs.size(); ++i) {
    const shard::Range range = loaded.parameters->master_range(i);
    if (range.count > 0)
      llama::read_parameter(files, loaded.specs[i], range.begin, loaded.parameters->master_part(i));
  }
  loaded.parameters->refresh_compute();
}

}  // namespace

ShardGroups::ShardGroups(comm::Group& world, const job::TrainingSpec& training,
                         int local_world_size) {
  const int size = shard_group_size(world.size(), training, local_world_size);
  const int first = world.rank() / size * size;
  gather_ = world.split(every(first, size, 1), "gather");
  reduce_ = world.split(every(first, size, 1), "reduce");
  replicas_ = world.split(every(world.rank() % size, world.size() / size, size), "replicas");
}

shard::Sharded to_sharded(job::Sharding sharding) {
  switch (sharding) {
    case job::Sharding::kNone:
      return {};
    case job::Sharding::kOptimizer:
      return {true, false, false};
    case job::Sharding::kGradients:
    case job::Sharding::kHybridZero2:
      return {true, true, false};
    case job::Sharding::kFull:
    case job::Sharding::kHybrid:
      return {true, true, true};
  }
  throw Error(ErrorKind::kInternal, "Sharding has an unknown value");
}

shard::Offload to_offload(job::Offload offload) {
  return {offload != job::Offload::kNone, offload == job::Offload::kParameters};
}

std::vector<shard::Parameter> flat_parameters_of(const std::vector<llama::ParameterSpec>& specs) {
  std::vector<shard::Parameter> parameters;
  for (const llama::ParameterSpec& spec : specs)
    parameters.push_back({spec.shape, spec.unit, spec.is_matrix()});
  return parameters;
}

llama::Recompute to_recompute(job::Recompute recompute) {
  switch (recompute) {
    case job::Recompute::kNone:
      return llama::Recompute::kNone;
    case job::Recompute::kCheap:
      return llama::Recompute::kCheap;
    case job::Recompute::kFull:
      return llama::Recompute::kFull;
  }
  throw Error(ErrorKind::kInternal, "Recompute has an unknown value");
}

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.config = checkpoint::read_llama_config(folder);
  loaded.specs = llama::parameter_specs(loaded.config);
  const checkpoint::ModelFolder files(folder);
  llama::check_parameters(files, loaded.specs);
  loaded.parameters = std::make_unique<shard::FlatParameters>(
      flat_parameters_of(loaded.specs),
      shard::FlatOptions{options.device, compute_dtype(options.precision), options.with_gradients,
                         to_sharded(options.sharding), to_offload(options.offload)},
      options.groups);
  llama::ModelOptions model_options;
  model_options.recompute = to_recompute(options.recompute);
  loaded.model = std::make_unique<llama::Model>(
      loaded.config, std::vector<llama::Weight>(loaded.specs.size()), std::move(model_options));
  loaded.model->set_hooks(make_hooks(*loaded.parameters, *loaded.model));
  read_masters(files, loaded);
  return loaded;
}

}  // namespace xffl::train
