#include "xffl/checkpoint/lora.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/random.h"

namespace xffl::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxAdapterConfigBytes = 1u << 20;
constexpr int64_t kMaxRank = 1 << 16;
constexpr double kMaxAlpha = 1e6;
constexpr int64_t kWriteElements = 1 << 20;
constexpr size_t kReadElements = 1 << 14;  // a piece of a row that fits a processor's cache
constexpr std::string_view kAdapterPrefix = "base_model.model.";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
constexpr std::array<std::string_view, 2> kWholeModules{"embed_tokens", "lm_head"};

// The names of the modules of all families, in the order of their blocks.
const std::vector<std::string_view>& module_list() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> names;
    for (const ModelFamily& family : model_families())
      for (const LinearLayer& layer : family.linear_layers({}))
        if (std::find(names.begin(), names.end(), layer.name) == names.end())
          names.push_back(layer.name);
    return names;
  }();
  return all;
}

std::string module_names() {
  std::string names;
  for (const std::string_view name : module_list()) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

// Sorts the modules in the order of module_list(); returns an error message, or "".
std::string sort_modules(std::vector<std::string>& modules) {
  if (modules.empty()) return "names no module";
  std::vector<std::string> sorted;
  for (const std::string_view name : module_list()) {
    const auto count = std::count(modules.begin(), modules.end(), name);
    if (count > 1) return "names " + std::string(name) + " twice";
    if (count == 1) sorted.emplace_back(name);
  }
  for (const std::string& name : modules)
    if (std::find(sorted.begin(), sorted.end(), name) == sorted.end())
      return "names '" + log::printable(name, 100) + "'; this build adapts " + module_names();
  modules = std::move(sorted);
  return "";
}

// Sorts the fully trained modules; returns an error message, or "".
std::string sort_whole_modules(std::vector<std::string>& modules) {
  for (const std::string& name : modules) {
    if (std::find(kWholeModules.begin(), kWholeModules.end(), name) == kWholeModules.end())
      return "names '" + log::printable(name, 100) +
             "'; this build trains embed_tokens and lm_head whole";
    if (std::count(modules.begin(), modules.end(), name) > 1) return "names " + name + " twice";
  }
  std::sort(modules.begin(), modules.end());  // also the order of kWholeModules
  return "";
}

bool is_default(const Json& value) {
  return value.is_null() || (value.is_boolean() && value == false) ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

// PEFT settings that xffl does not implement: any value but the default changes the adapter's
// results.
constexpr std::array kUnsupportedKeys{"use_qalora",
                                      "use_bdlora",
                                      "lora_bias",
                                      "fan_in_fan_out",
                                      "rank_pattern",
                                      "alpha_pattern",
                                      "layers_to_transform",
                                      "layer_replication",
                                      "trainable_token_indices",
                                      "exclude_modules",
                                      "target_parameters",
                                      "megatron_config",
                                      "alora_invocation_tokens",
                                      "arrow_config",
                                      "kasa_config",
                                      "monteclora_config",
                                      "velora_config"};

void check_unsupported_keys(JsonObject& object) {
  const auto fail = [&](const char* key, const Json& found, const char* supported) {
    object.fail_unsupported(key, found.dump(), supported);
  };
  const std::string type = object.string("peft_type");
  if (type != "LORA") fail("peft_type", type, "LORA");
  const std::string bias = object.string_or("bias", "none");
  if (bias != "none") fail("bias", bias, "none");
  for (const char* key : kUnsupportedKeys)
    if (object.has(key) && !is_default(object.at(key)))
      fail(key, object.at(key), "only null, false or empty");
  // Other initializations change the base model's weights (PiSSA, OLoRA, LoftQ, ...).
  if (!object.has("init_lora_weights")) return;
  const Json& init = object.at("init_lora_weights");
  if (!init.is_boolean() && init != "gaussian") fail("init_lora_weights", init, "true or gaussian");
}

uint64_t stream_of(std::string_view name, uint64_t seed) {
  uint64_t state = splitmix64_mix(seed + kSplitMix64Step);
  for (const char c : name)
    state = splitmix64_mix((state ^ static_cast<unsigned char>(c)) + kSplitMix64Step);
  return state;
}

bool is_a(const TensorSpec& spec) { return spec.name.ends_with(".lora_A.weight"); }
bool is_b(const TensorSpec& spec) { return spec.name.ends_with(".lora_B.weight"); }
bool is_magnitude(const TensorSpec& spec) { return spec.name.ends_with(kMagnitude); }

bool boolean_or_null(JsonObject& object, const char* key) {
  return object.has(key) && !object.at(key).is_null() && object.boolean(key);
}

std::string adapter_prefix(int64_t block, const LinearLayer& layer) {
  return std::string(kAdapterPrefix) + "model.layers." + std::to_string(block) + "." + layer.path();
}

// The name of the base model's weight that gives this tensor of a fresh adapter its values.
std::string source_of(const TensorSpec& spec) {
  std::string_view name = spec.name;
  name.remove_prefix(kAdapterPrefix.size());
  if (!is_magnitude(spec)) return std::string(name);
  name.remove_suffix(kMagnitude.size());
  return std::string(name) + ".weight";
}

// The sum of the squares of a row's elements, stored in `row`.
double sum_of_squares(std::span<const std::byte> row, Dtype dtype) {
  const size_t width = size_bytes(dtype);
  std::array<float, kReadElements> cached;
  double sum = 0;
  for (size_t begin = 0; begin < row.size() / width; begin += kReadElements) {
    const size_t count = std::min(kReadElements, row.size() / width - begin);
    const std::span<float> values(cached.data(), count);
    to_float(row.subspan(begin * width, count * width), dtype, values);
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum;
}

// Throws kRejected unless the base model has the weight for this tensor.
const TensorSpec& weight_for(const ModelFolder& base, const TensorSpec& spec) {
  const std::string name = source_of(spec);
  const std::string size = is_magnitude(spec) ? "with " + std::to_string(spec.shape.at(0)) + " rows"
                                              : "of the shape " + format_shape(spec.shape);
  const auto reject = [&](const std::string& problem) {
    throw Error(ErrorKind::kRejected, base.path().string() + ": tensor '" + name + "' " + problem +
                                          "; the adapter's " + spec.name + " needs a matrix " +
                                          size + ", in F32, F16 or BF16");
  };
  if (!base.contains(name)) reject("is missing");
  const TensorSpec& weight = base.spec(name);
  if (weight.shape.size() != 2 || weight.shape[0] != spec.shape.at(0) ||
      (!is_magnitude(spec) && weight.shape != spec.shape))
    reject("has the shape " + format_shape(weight.shape));
  if (weight.dtype != Dtype::kF32 && weight.dtype != Dtype::kF16 && weight.dtype != Dtype::kBF16)
    reject("has the dtype " + std::string(to_string(weight.dtype)));
  return weight;
}

void read_row_lengths(const ModelFolder& base, const TensorSpec& magnitude, int64_t begin,
                      std::span<float> out) {
  const TensorSpec& weight = weight_for(base, magnitude);
  const std::span<const std::byte> data = base.data(weight.name);
  const size_t row_bytes = static_cast<size_t>(weight.shape.at(1)) * size_bytes(weight.dtype);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t row = static_cast<size_t>(begin) + i;
    out[i] = static_cast<float>(
        std::sqrt(sum_of_squares(data.subspan(row * row_bytes, row_bytes), weight.dtype)));
    if (!std::isfinite(out[i]))
      throw Error(ErrorKind::kRejected,
                  base.path().string() + ": tensor '" + weight.name + "', row " +
                      std::to_string(row) +
                      " has no finite length, as DoRA's magnitudes need; expected finite values");
  }
}

void read_weight(const ModelFolder& base, const TensorSpec& spec, int64_t begin,
                 std::span<float> out) {
  const TensorSpec& weight = weight_for(base, spec);
  const size_t width = size_bytes(weight.dtype);
  to_float(base.data(weight.name).subspan(static_cast<size_t>(begin) * width, out.size() * width),
           weight.dtype, out);
}

}  // namespace

bool LoraConfig::targets(std::string_view module) const {
  return std::find(target_modules.begin(), target_modules.end(), module) != target_modules.end();
}

bool LoraConfig::applies_as(const LoraConfig& other) const {
  LoraConfig alike = other;
  alike.dropout = dropout;
  return alike == *this;
}

LoraConfig checked_lora_config(LoraConfig config, std::string_view where) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::kConfig, std::string(where) + problem);
  };
  if (config.rank < 1 || config.rank > kMaxRank)
    fail(".rank is " + std::to_string(config.rank) + ", expected 1 to " + std::to_string(kMaxRank));
  if (!(config.alpha > 0 && config.alpha <= kMaxAlpha))
    fail(".alpha is " + Json(config.alpha).dump() + ", expected above 0 and up to " +
         Json(kMaxAlpha).dump());
  if (!(config.dropout >= 0 && config.dropout < 1))
    fail(".dropout is " + Json(config.dropout).dump() + ", expected 0 to below 1");
  const std::string problem = sort_modules(config.target_modules);
  if (!problem.empty()) fail(".target_modules " + problem);
  const std::string whole = sort_whole_modules(config.modules_to_save);
  if (!whole.empty()) fail(".modules_to_save " + whole);
  return config;
}

LoraConfig parse_lora_config(std::string_view json, std::string_view origin) {
  const Json document = parse_json(
      json, origin, {.max_bytes = kMaxAdapterConfigBytes, .max_depth = 8, .max_keys = 1000});
  JsonObject object(document, std::string(origin));
  check_unsupported_keys(object);
  LoraConfig config;
  config.rank = object.integer("r", 1, kMaxRank);
  config.alpha = object.number("lora_alpha");
  config.dropout = object.number_or("lora_dropout", 0);
  config.rank_stabilized = boolean_or_null(object, "use_rslora");
  config.weight_decomposed = boolean_or_null(object, "use_dora");
  if (object.has("modules_to_save") && !object.at("modules_to_save").is_null())
    config.modules_to_save = object.strings("modules_to_save");
  const std::string whole = sort_whole_modules(config.modules_to_save);
  if (!whole.empty())
    throw Error(ErrorKind::kUnsupported, object.where() + ": 'modules_to_save' " + whole);
  if (!(config.alpha > 0 && config.alpha <= kMaxAlpha))
    object.fail("lora_alpha", "should be above 0 and at most " + Json(kMaxAlpha).dump());
  if (!(config.dropout >= 0 && config.dropout < 1))
    object.fail("lora_dropout", "should be 0 to below 1");
  if (!object.at("target_modules").is_array())
    throw Error(ErrorKind::kUnsupported,
                object.where() +
                    ": 'target_modules' is not a list; this build supports a list of " +
                    module_names());
  config.target_modules = object.strings("target_modules");
  const std::string problem = sort_modules(config.target_modules);
  if (!problem.empty())
    throw Error(ErrorKind::kUnsupported, object.where() + ": 'target_modules' " + problem);
  return config;
}

LoraConfig read_lora_config(const fs::path& folder) {
  const fs::path path = folder / kAdapterConfigName;
  return parse_lora_config(read_file(path, kMaxAdapterConfigBytes), path.string());
}

std::string format_lora_config(const LoraConfig& config) {
  Json document{{"peft_type", "LORA"},
                {"task_type", "CAUSAL_LM"},
                {"base_model_name_or_path", nullptr},
                {"r", config.rank},
                {"lora_alpha", config.alpha},
                {"lora_dropout", config.dropout},
                {"target_modules", config.target_modules},
                {"bias", "none"},
                {"fan_in_fan_out", false},
                {"inference_mode", true}};
  if (config.rank_stabilized) document["use_rslora"] = true;
  if (config.weight_decomposed) document["use_dora"] = true;
  if (!config.modules_to_save.empty()) document["modules_to_save"] = config.modules_to_save;
  return document.dump(2) + "\n";
}

std::vector<TensorSpec> lora_tensors(const LlamaConfig& model, const LoraConfig& lora,
                                     Dtype dtype) {
  if (model.tie_word_embeddings && !lora.modules_to_save.empty())
    throw Error(ErrorKind::kUnsupported,
                "modules_to_save names " + lora.modules_to_save.front() +
                    ", but the model's head is its embedding (tie_word_embeddings): training one "
                    "whole would part them; leave modules_to_save empty, or untie the model");
  std::vector<TensorSpec> tensors;
  const auto add_whole = [&](std::string_view module, const char* path) {
    if (std::count(lora.modules_to_save.begin(), lora.modules_to_save.end(), module) > 0)
      tensors.push_back(
          {std::string(kAdapterPrefix) + path, dtype, {model.vocab_size, model.hidden_size}});
  };
  add_whole("embed_tokens", "model.embed_tokens.weight");
  const std::vector<LinearLayer> layers = model.family().linear_layers(model);
  for (int64_t block = 0; block < model.num_layers; ++block) {
    for (const LinearLayer& layer : layers) {
      if (!lora.targets(layer.name)) continue;
      const std::string prefix = adapter_prefix(block, layer);
      tensors.push_back({prefix + ".lora_A.weight", dtype, {lora.rank, layer.in}});
      tensors.push_back({prefix + ".lora_B.weight", dtype, {layer.out, lora.rank}});
    }
    if (!lora.weight_decomposed) continue;
    for (const LinearLayer& layer : layers)
      if (lora.targets(layer.name))
        tensors.push_back(
            {adapter_prefix(block, layer) + std::string(kMagnitude), dtype, {layer.out}});
  }
  add_whole("lm_head", "lm_head.weight");
  return tensors;
}

void check_lora_tensors(const ModelFolder& adapter, const LlamaConfig& model,
                        const LoraConfig& lora) {
  const std::string origin = adapter.path().string();
  check_same_schema(adapter.tensors(), lora_tensors(model, lora, Dtype::kF32), /*any_float=*/true,
                    origin);
  for (const TensorSpec& spec : adapter.tensors()) {
    const auto bad = first_non_finite(adapter.data(spec.name), spec.dtype);
    if (bad)
      throw Error(ErrorKind::kRejected, origin + ": tensor '" + spec.name + "', element " +
                                            std::to_string(*bad) +
                                            " is not finite; expected finite values");
  }
}

void initialize_lora(const TensorSpec& spec, uint64_t seed, int64_t begin, std::span<float> out,
                     const ModelFolder* base) {
  if (!is_a(spec) && !is_b(spec)) {
    if (base == nullptr)
      throw Error(ErrorKind::kInternal, spec.name + ": the values depend on the base model");
    if (is_magnitude(spec)) return read_row_lengths(*base, spec, begin, out);
    return read_weight(*base, spec, begin, out);
  }
  std::fill(out.begin(), out.end(), 0.0f);
  if (is_b(spec)) return;
  const double bound = 1.0 / std::sqrt(static_cast<double>(spec.shape.at(1)));
  const uint64_t stream = stream_of(spec.name, seed);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t counter = stream + (static_cast<uint64_t>(begin) + i) * kSplitMix64Step;
    const double uniform = to_unit_interval(splitmix64_mix(counter));
    out[i] = static_cast<float>(bound * (2 * uniform - 1));
  }
}

void write_initial_lora(const fs::path& folder, const LlamaConfig& model, const LoraConfig& lora,
                        uint64_t seed, const ModelFolder* base) {
  make_dirs(folder);
  const std::vector<TensorSpec> tensors = lora_tensors(model, lora, Dtype::kF32);
  SafetensorsWriter writer(folder / kAdapterName, tensors);
  std::vector<float> values;
  for (const TensorSpec& spec : tensors) {
    for (int64_t begin = 0; begin < spec.num_elements(); begin += kWriteElements) {
      values.resize(static_cast<size_t>(std::min(kWriteElements, spec.num_elements() - begin)));
      initialize_lora(spec, seed, begin, values, base);
      writer.write(std::as_bytes(std::span(values)));
    }
  }
  writer.finish();
  write_file_atomic(folder / kAdapterConfigName, format_lora_config(lora));
}

}  // namespace xffl::checkpoint
