#include "xffl/train/loaded_model.h"

#include <ATen/Parallel.h>
#include <fnmatch.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host_copies.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/job/supported.h"
#include "xffl/llama/model_files.h"

namespace xffl::train {
namespace {

constexpr std::string_view kAdapterPrefix = "base_model.model.";

bool is_of_adapter(const llama::ParameterSpec& spec) {
  return spec.name.starts_with(kAdapterPrefix);
}

// Returns the names by which a pattern can freeze a parameter. An adapter's parameter has two: its
// own, as a part of the model, and the name of the matrix that it adapts.
std::vector<std::string> names_of(const llama::ParameterSpec& spec) {
  if (!is_of_adapter(spec)) return {spec.name};
  const std::string name = spec.name.substr(kAdapterPrefix.size());
  return {name, name.substr(0, name.find(".lora_")) + ".weight"};
}

// Patterns of names, as in fnmatch(3).
class FreezePatterns {
 public:
  explicit FreezePatterns(const std::vector<std::string>& patterns)
      : patterns_(patterns), used_(patterns.size()) {}

  bool match(const llama::ParameterSpec& spec) {
    bool matched = false;
    for (const std::string& name : names_of(spec)) {
      for (size_t i = 0; i < used_.size(); ++i) {
        if (::fnmatch(patterns_[i].c_str(), name.c_str(), 0) != 0) continue;
        matched = used_[i] = true;
      }
    }
    return matched;
  }

  // Throws kConfig for a pattern that has matched nothing.
  void check_used() const {
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        throw Error(ErrorKind::kConfig, "training.freeze: '" + log::printable(patterns_[i], 200) +
                                            "' matches no parameter of the model (a name is like "
                                            "model.layers.0.mlp.up_proj.weight; * matches any "
                                            "text)");
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
};

// Fills loaded.specs with the trained parameters and loaded.frozen_specs with the others.
void split_trained_and_frozen(const std::vector<llama::ParameterSpec>& all,
                              const LoadOptions& options, LoadedModel& loaded) {
  FreezePatterns freeze(options.freeze);
  std::vector<llama::ParameterSpec> adapter;
  if (options.lora) adapter = llama::adapter_specs(loaded.config, *options.lora);
  // The adapter's own embedding or head replaces the model's.
  std::set<std::string> replaced;
  for (const llama::ParameterSpec& spec : adapter) replaced.insert(spec.name);
  for (const llama::ParameterSpec& spec : all) {
    if (replaced.contains(std::string(kAdapterPrefix) + spec.name)) continue;
    const bool frozen = freeze.match(spec) || options.lora.has_value();
    (frozen ? loaded.frozen_specs : loaded.specs).push_back(spec);
  }
  for (const llama::ParameterSpec& spec : adapter)
    (freeze.match(spec) ? loaded.frozen_specs : loaded.specs).push_back(spec);
  freeze.check_used();
  if (loaded.specs.empty())
    throw Error(ErrorKind::kConfig, "training.freeze: all parameters" +
                                        std::string(options.lora ? " of the adapter" : "") +
                                        " are frozen, none is trained");
}

shard::FlatOptions flat_options(const LoadOptions& options, bool frozen) {
  shard::FlatOptions flat;
  flat.device = options.device;
  flat.compute_dtype = to_dtype(options.precision);
  flat.with_gradients = options.with_gradients && !frozen;
  flat.frozen = frozen || !options.with_gradients;
  flat.masters = options.masters;
  flat.gradient_dtype = to_dtype(options.gradient_dtype);
  flat.sharded = to_sharded(options.sharding);
  flat.offload = to_offload(options.offload);
  return flat;
}

// The weights of a unit in one set of buffers, trained or frozen.
struct Share {
  shard::FlatParameters* parameters = nullptr;
  bool trained = false;
  std::vector<std::pair<llama::Weight*, size_t>> weights;  // with their indices in the buffers
};
using Shares = std::vector<std::vector<Share>>;  // by unit

void add_to_shares(Shares& shares, shard::FlatParameters& parameters, bool trained,
                   std::span<llama::Weight* const> weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    std::vector<Share>& unit = shares[static_cast<size_t>(parameters.layout().places()[i].unit)];
    if (unit.empty() || unit.back().parameters != &parameters)
      unit.push_back({&parameters, trained, {}});
    unit.back().weights.emplace_back(weights[i], i);
  }
}

using WeightsByName = std::map<std::string, llama::Weight*>;

WeightsByName weights_by_name(LoadedModel& loaded) {
  WeightsByName weights;
  llama::Model& model = *loaded.model;
  size_t next = 0;
  for (const llama::ParameterSpec& spec : llama::parameter_specs(loaded.config))
    weights[spec.name] = &model.weights(spec.unit)[next++ - model.unit_begin(spec.unit)];
  if (!loaded.lora) return weights;
  next = 0;
  for (const llama::ParameterSpec& spec : llama::adapter_specs(loaded.config, *loaded.lora))
    weights[spec.name] = &model.adapter_weights()[next++];
  return weights;
}

Shares make_shares(LoadedModel& loaded) {
  const WeightsByName weights = weights_by_name(loaded);
  const auto weights_of = [&](const std::vector<llama::ParameterSpec>& specs) {
    std::vector<llama::Weight*> found;
    for (const llama::ParameterSpec& spec : specs) found.push_back(weights.at(spec.name));
    return found;
  };
  Shares shares(static_cast<size_t>(loaded.model->num_units()));
  add_to_shares(shares, *loaded.parameters, true, weights_of(loaded.specs));
  if (loaded.frozen) add_to_shares(shares, *loaded.frozen, false, weights_of(loaded.frozen_specs));
  return shares;
}

bool has_unit(const shard::FlatParameters& parameters, int unit) {
  return unit >= 1 && unit < parameters.num_units() &&
         parameters.layout().units()[static_cast<size_t>(unit)].size > 0;
}

// Makes hooks that gather a unit's weights before the model uses them, take the gradients of the
// trained weights, and release the unit (ZeRO-3). `loaded` may move; its buffers and model must
// outlive the hooks.
llama::UnitHooks make_hooks(LoadedModel& loaded) {
  const auto shares = std::make_shared<const Shares>(make_shares(loaded));
  const auto enter = [shares](int unit, llama::UnitUse use) {
    for (const Share& share : (*shares)[static_cast<size_t>(unit)]) {
      shard::FlatParameters& parameters = *share.parameters;
      if (use.values) {
        parameters.gather(unit);
        // Prefetches the next block, forward or backward; backward does not read the embedding.
        const int next = use.gradients ? unit - 1 : unit + 1;
        if (has_unit(parameters, next)) parameters.prefetch(next);
        for (const auto& [weight, index] : share.weights) weight->value = parameters.compute(index);
      }
      if (!use.gradients || !share.trained) continue;
      const bool opened = parameters.open_gradients(unit);
      for (const auto& [weight, index] : share.weights) {
        weight->gradient = parameters.gradient(index);
        if (opened) weight->clear();
      }
    }
  };
  const auto leave = [shares](int unit, llama::UnitUse use) {
    for (const Share& share : (*shares)[static_cast<size_t>(unit)]) {
      if (use.gradients && share.trained) {
        for (const auto& [weight, index] : share.weights) weight->finish();
        share.parameters->close_gradients(unit);
      }
      if (use.values) share.parameters->release(unit);
    }
  };
  return {enter, leave};
}

constexpr int64_t kReadElements = 1 << 15;  // the elements of one read: 128 kB of float32

// Copies from the file's pages to the masters in pieces that fit a thread's cache.
void read_to_host(const ParameterSource& source, const llama::ParameterSpec& spec, size_t index,
                  shard::FlatParameters& parameters) {
  const shard::Range range = parameters.master_range(index);
  at::parallel_for(0, range.count, kReadElements, [&](int64_t first, int64_t end) {
    std::vector<float> cached(static_cast<size_t>(std::min(kReadElements, end - first)));
    for (int64_t begin = first; begin < end; begin += kReadElements) {
      const auto count = static_cast<size_t>(std::min(kReadElements, end - begin));
      const std::span<float> piece = std::span(cached).first(count);
      source.read(spec, range.begin + begin, piece);
      parameters.store_master_part(index, begin, piece);
    }
  });
}

// Uploads the file's 16-bit values, which have half the bytes of float32, and widens them on the
// device.
void read_to_device(const ParameterSource& source, const llama::ParameterSpec& spec, size_t index,
                    shard::FlatParameters& parameters, DeviceUpload& upload) {
  const shard::Range range = parameters.master_range(index);
  std::span<const std::byte> bytes;
  at::ScalarType dtype = at::kFloat;
  size_t width = sizeof(float);
  const checkpoint::ModelFolder* const files = source.files_of(spec);
  if (files != nullptr) {
    const checkpoint::Dtype stored = files->spec(spec.name).dtype;
    width = checkpoint::size_bytes(stored);
    bytes = files->data(spec.name);
    if (stored != checkpoint::Dtype::kF32)
      dtype = stored == checkpoint::Dtype::kBF16 ? at::kBFloat16 : at::kHalf;
  }
  const auto fill = [&](int64_t begin, std::span<std::byte> to) {
    const auto count = to.size() / width;
    if (files == nullptr)
      return source.read(spec, range.begin + begin, {reinterpret_cast<float*>(to.data()), count});
    const auto from = bytes.subspan(static_cast<size_t>(range.begin + begin) * width, to.size());
    std::copy(from.begin(), from.end(), to.begin());
  };
  upload.run(range.count, dtype, fill, [&](int64_t begin, const at::Tensor& values) {
    parameters.set_master_part(index, {begin, values.numel()}, values);
  });
}

// Fills this rank's masters of all parameters, and the compute copies.
void read_all(const ParameterSource& source, const std::vector<llama::ParameterSpec>& specs,
              shard::FlatParameters& parameters) {
  std::optional<DeviceUpload> upload;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters.master_range(i).count == 0) continue;
    const at::Device device = parameters.master_part(i).device();
    if (device.is_cpu()) {
      read_to_host(source, specs[i], i, parameters);
      continue;
    }
    if (!upload) upload.emplace(device);
    read_to_device(source, specs[i], i, parameters, *upload);
  }
  // On a GPU the compute copies, including copies of host masters, are still missing.
  parameters.refresh_compute(parameters.copies_on_host());
}

// Makes the tied head of a pipeline's first and last stage. The head has gradients if the embedding
// is trained.
void make_tied_head(LoadedModel& loaded, const LoadOptions& options) {
  const bool is_end = options.stage == 0 || options.stage + 1 == options.num_stages;
  if (!loaded.config.tie_word_embeddings || options.num_stages == 1 || !is_end) return;
  const bool is_trained = options.with_gradients && trains_embedding(loaded);
  const shard::FlatOptions flat = flat_options(options, !is_trained);
  loaded.tied_head =
      std::make_unique<TiedHead>(*loaded.model, *options.groups.stages,
                                 at::TensorOptions().device(flat.device).dtype(flat.compute_dtype),
                                 is_trained ? std::optional(flat.gradient_dtype) : std::nullopt);
}

// Throws kRejected if options.adapter is set and does not match options.lora or the model.
void check_adapter(const LoadOptions& options, const checkpoint::LlamaConfig& config) {
  if (options.adapter.empty()) return;
  const checkpoint::LoraConfig found = checkpoint::read_lora_config(options.adapter);
  const auto reject = [&](const std::string& property) {
    throw Error(ErrorKind::kRejected, options.adapter.string() + ": the input adapter's " +
                                          property + " differs from the job's training.lora");
  };
  if (found.rank != options.lora->rank)
    reject("rank (" + std::to_string(found.rank) + ", not " + std::to_string(options.lora->rank) +
           ")");
  if (found.alpha != options.lora->alpha) reject("alpha");
  if (found.rank_stabilized != options.lora->rank_stabilized) reject("use_rslora");
  if (found.weight_decomposed != options.lora->weight_decomposed) reject("use_dora");
  if (found.modules_to_save != options.lora->modules_to_save) reject("modules_to_save");
  if (found.target_modules != options.lora->target_modules) reject("target_modules");
  checkpoint::check_lora_tensors(checkpoint::ModelFolder(options.adapter), config, *options.lora);
}

}  // namespace

ParameterSource::ParameterSource(const std::filesystem::path& folder, const LoadOptions& options)
    : base_(folder), seed_(options.lora_seed) {
  if (options.lora && !options.adapter.empty()) adapter_.emplace(options.adapter);
}

const checkpoint::ModelFolder* ParameterSource::files_of(const llama::ParameterSpec& spec) const {
  if (!is_of_adapter(spec)) return &base_;
  return adapter_ ? &*adapter_ : nullptr;
}

void ParameterSource::read(const llama::ParameterSpec& spec, int64_t begin,
                           std::span<float> out) const {
  if (const auto* const files = files_of(spec))
    return llama::read_parameter(*files, spec, begin, out);
  checkpoint::initialize_lora({spec.name, checkpoint::Dtype::kF32, spec.shape}, seed_, begin, out,
                              &base_);
}

ShardGroups::ShardGroups(comm::Group& world, const job::TrainingSpec& training,
                         int local_world_size) {
  const int size = job::shard_group_size(training, world.size(), local_world_size);
  const int first = world.rank() / size * size;
  gather_ = world.split(strided_ranks(first, size, 1), "gather");
  reduce_ = world.split(strided_ranks(first, size, 1), "reduce");
  replicas_ =
      world.split(strided_ranks(world.rank() % size, world.size() / size, size), "replicas");
}

shard::Sharded to_sharded(job::Sharding sharding) {
  using enum job::Sharding;
  return {.states = sharding != kNone,
          .gradients = sharding != kNone && sharding != kOptimizer,
          .parameters = sharding == kFull || sharding == kHybrid};
}

shard::Offload to_offload(job::Offload offload) {
  return {offload != job::Offload::kNone, offload == job::Offload::kParameters};
}

at::ScalarType to_dtype(job::FloatType type) {
  if (type == job::FloatType::kBfloat16) return at::kBFloat16;
  return type == job::FloatType::kFloat16 ? at::kHalf : at::kFloat;
}

checkpoint::Dtype to_file_dtype(job::FloatType type) {
  if (type == job::FloatType::kBfloat16) return checkpoint::Dtype::kBF16;
  return type == job::FloatType::kFloat16 ? checkpoint::Dtype::kF16 : checkpoint::Dtype::kF32;
}

at::ScalarType to_dtype(job::StateDtype dtype) {
  return dtype == job::StateDtype::kBfloat16 ? at::kBFloat16 : at::kFloat;
}

std::vector<shard::Parameter> flat_parameters_of(const std::vector<llama::ParameterSpec>& specs,
                                                 UnitRange units) {
  std::vector<shard::Parameter> parameters;
  for (const llama::ParameterSpec& spec : specs) {
    const bool here = spec.unit >= units.first && spec.unit < units.end;
    parameters.push_back(
        {here ? spec.shape : std::vector<int64_t>{0}, spec.unit, spec.is_matrix()});
  }
  return parameters;
}

LoadedModel outline_model(const std::filesystem::path& folder, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.config = checkpoint::read_llama_config(folder);
  loaded.lora = options.lora;
  loaded.stages = stage_units(loaded.config, options.num_stages);
  loaded.stage = options.stage;
  const std::vector<llama::ParameterSpec> all = llama::parameter_specs(loaded.config);
  llama::check_parameters(checkpoint::ModelFolder(folder), all);
  if (options.lora) check_adapter(options, loaded.config);
  split_trained_and_frozen(all, options, loaded);
  return loaded;
}

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  LoadedModel loaded = outline_model(folder, options);
  const UnitRange here = loaded.stages.at(static_cast<size_t>(options.stage));
  loaded.parameters = std::make_unique<shard::FlatParameters>(
      flat_parameters_of(loaded.specs, here), flat_options(options, false), options.groups);
  if (!loaded.frozen_specs.empty())
    loaded.frozen = std::make_unique<shard::FlatParameters>(
        flat_parameters_of(loaded.frozen_specs, here), flat_options(options, true), options.groups);
  llama::ModelOptions model_options;
  model_options.lora = options.lora;
  model_options.first_unit = here.first;
  model_options.end_unit = here.end;
  model_options.recompute = options.recompute;
  // With an adapter, the model takes all its own parameters and the adapter's parameters. It does
  // not read its own embedding or head if the adapter has one.
  size_t num_weights = llama::parameter_specs(loaded.config).size();
  if (options.lora) num_weights += llama::adapter_specs(loaded.config, *options.lora).size();
  loaded.model = std::make_unique<llama::Model>(
      loaded.config, std::vector<llama::Weight>(num_weights), std::move(model_options));
  loaded.model->set_hooks(make_hooks(loaded));
  const ParameterSource source(folder, options);
  read_all(source, loaded.specs, *loaded.parameters);
  if (loaded.frozen) read_all(source, loaded.frozen_specs, *loaded.frozen);
  make_tied_head(loaded, options);
  return loaded;
}

LoadOptions load_options(const job::JobSpec& spec, at::Device device, const shard::Groups& groups) {
  const job::TrainingSpec& training = spec.training;
  LoadOptions options{.device = device,
                      .precision = training.precision,
                      .masters = training.masters,
                      .gradient_dtype = training.gradient_dtype,
                      .with_gradients = training.steps > 0,
                      .sharding = training.sharding,
                      .offload = training.offload,
                      .recompute = training.recompute,
                      .groups = groups,
                      .adapter = spec.adapter_path,
                      .lora_seed = training.seed,
                      .freeze = training.freeze};
  const job::Lora& lora = training.lora;
  if (lora.rank > 0)
    options.lora = checkpoint::checked_lora_config(
        {lora.rank, lora.alpha, lora.dropout, lora.target_modules, lora.rank_stabilized,
         lora.weight_decomposed, lora.modules_to_save},
        "training.lora");
  return options;
}

at::Tensor LoadedModel::activation_for(const Batch& batch) const {
  const at::Tensor& tokens_BT = batch.tokens_BT;
  return at::empty(
      {tokens_BT.size(0), tokens_BT.size(1), config.hidden_size},
      at::TensorOptions().dtype(parameters->compute_dtype()).device(tokens_BT.device()));
}

int64_t num_trained(const LoadedModel& loaded) {
  int64_t count = 0;
  for (const llama::ParameterSpec& spec : loaded.specs) count += spec.num_elements();
  return count;
}

bool trains_embedding(const LoadedModel& loaded) {
  return std::any_of(loaded.specs.begin(), loaded.specs.end(),
                     [](const llama::ParameterSpec& spec) { return spec.unit == 0; });
}

}  // namespace xffl::train
