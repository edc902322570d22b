#include "xffl/checkpoint/llama_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <system_error>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::checkpoint {
namespace {

constexpr uint64_t kMaxConfigBytes = 1u << 20;
constexpr int64_t kMaxTokenId = int64_t{1} << 31;

/// Throws kUnsupported when `key` has a value other than `expected`: another value changes the
/// results.
void require(JsonObject& object, std::string_view key, std::string_view expected) {
  const bool is_list = object.has(key) && object.at(key).is_array();
  for (const std::string& found :
       is_list ? object.strings(key) : std::vector{object.string_or(key, std::string(expected))})
    if (found != expected) object.fail_unsupported(key, found, expected);
}

void require(JsonObject& object, std::string_view key, bool expected) {
  const bool found = object.boolean_or(key, expected);
  if (found != expected) object.fail_unsupported(key, Json(found).dump(), Json(expected).dump());
}

void require(JsonObject& object, std::string_view key, double expected) {
  const double found = object.number_or(key, expected);
  if (found != expected) object.fail_unsupported(key, Json(found).dump(), Json(expected).dump());
}

double number_within(JsonObject& object, std::string_view key, double default_value, double min,
                     double max) {
  const double value = object.number_or(key, default_value);
  if (!(value >= min && value <= max)) {
    object.fail(key, "should lie in " + Json(min).dump() + " .. " + Json(max).dump() + ", found " +
                         Json(value).dump());
  }
  return value;
}

const ModelFamily& parse_family(JsonObject& object) {
  const std::string model_type = object.string("model_type");
  const ModelFamily* const family = find_model_family(model_type);
  if (family == nullptr) object.fail_unsupported("model_type", model_type, model_family_names());
  return *family;
}

void check_architectures(JsonObject& object, const ModelFamily& family) {
  if (!object.has("architectures")) return;
  const auto& known = family.architectures;
  std::string found;
  for (const std::string& name : object.strings("architectures")) {
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    found += found.empty() ? name : ", " + name;
  }
  if (!found.empty()) object.fail_unsupported("architectures", found, known.front());
}

void check_unsupported(JsonObject& object, const ModelFamily& family) {
  check_architectures(object, family);
  for (const RequiredSetting& setting : family.required)
    std::visit([&](auto value) { require(object, setting.key, value); }, setting.value);
  if (object.has("quantization_config")) {
    object.fail_unsupported("quantization_config", "set", "weights in F32, F16 and BF16 only");
  }
}

/// The rotary embedding's settings in either dialect. rope_scaling takes precedence, as in
/// transformers 5.
std::optional<JsonObject> find_rope_object(JsonObject& object) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (object.has(key) && !object.at(key).empty()) return object.object(key);
  }
  return std::nullopt;
}

RopeKind parse_rope_kind(JsonObject& object) {
  const char* key = object.has("rope_type") ? "rope_type" : "type";
  const std::string type = object.string_or(key, "default");
  if (type == "default") return RopeKind::kDefault;
  if (type == "linear") return RopeKind::kLinear;
  if (type == "dynamic") return RopeKind::kDynamic;
  if (type == "llama3") return RopeKind::kLlama3;
  if (type == "yarn") return RopeKind::kYarn;
  object.fail_unsupported(key, type, "default, linear, dynamic, llama3 and yarn");
}

double required_factor(JsonObject& object, std::string_view key, double min) {
  object.at(key);
  return number_within(object, key, 0, min, 1e6);
}

/// Zero counts as absent, as in Hugging Face's code.
double factor_or(JsonObject& object, std::string_view key, double default_value) {
  const double value = number_within(object, key, default_value, 0, 1e6);
  return value == 0 ? default_value : value;
}

/// attention_factor, or its value in YaRN (Peng et al., 2023) by the factor and DeepSeek's mscale.
double parse_attention_factor(JsonObject& object, double factor) {
  if (object.has("attention_factor")) return number_within(object, "attention_factor", 1, 0, 1e6);
  const double mscale = number_within(object, "mscale", 0, 0, 1e6);
  const double mscale_all_dim = number_within(object, "mscale_all_dim", 0, 0, 1e6);
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  if (mscale == 0 || mscale_all_dim == 0) return scale(1);
  return scale(mscale) / scale(mscale_all_dim);
}

void parse_yarn(JsonObject& object, int64_t max_position_embeddings, Rope& rope) {
  rope.beta_fast = factor_or(object, "beta_fast", rope.beta_fast);
  rope.beta_slow = factor_or(object, "beta_slow", rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) object.fail("beta_fast", "should be at least beta_slow");
  rope.truncate = object.boolean_or("truncate", rope.truncate);
  rope.attention_factor = parse_attention_factor(object, rope.factor);
  rope.original_max_position_embeddings = object.integer_or(
      "original_max_position_embeddings", max_position_embeddings, 1, int64_t{1} << 31);
  if (rope.theta == 1) object.fail("rope_theta", "should be above 1 with yarn");
}

Rope parse_rope(JsonObject& config, int64_t max_position_embeddings) {
  Rope rope;
  rope.theta = number_within(config, "rope_theta", rope.theta, 1, 1e15);
  std::optional<JsonObject> object = find_rope_object(config);
  if (!object) return rope;
  rope.kind = parse_rope_kind(*object);
  rope.theta = number_within(*object, "rope_theta", rope.theta, 1, 1e15);
  require(*object, "partial_rotary_factor", 1.0);
  if (rope.kind == RopeKind::kDefault) return rope;
  rope.factor = required_factor(*object, "factor", 1);
  if (rope.kind == RopeKind::kLinear || rope.kind == RopeKind::kDynamic) return rope;
  if (rope.kind == RopeKind::kYarn) {
    parse_yarn(*object, max_position_embeddings, rope);
    return rope;
  }
  rope.low_freq_factor = required_factor(*object, "low_freq_factor", 1e-6);
  rope.high_freq_factor = required_factor(*object, "high_freq_factor", 1e-6);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    object->fail("high_freq_factor", "should be above low_freq_factor");
  }
  rope.original_max_position_embeddings =
      object->integer("original_max_position_embeddings", 1, int64_t{1} << 31);
  return rope;
}

/// An absent key gives HF's default; null, or the -1 of some old conversions, gives no ids.
std::vector<int64_t> parse_token_ids(JsonObject& object, std::string_view key,
                                     std::vector<int64_t> default_value) {
  if (!object.json().contains(std::string(key))) return default_value;
  const Json& value = object.at(key);
  if (value.is_null() || value == -1) return {};
  if (!value.is_array()) return {object.integer(key, 0, kMaxTokenId)};
  if (value.size() > 1000) object.fail(key, "should have at most 1000 ids");
  std::vector<int64_t> ids;
  for (const Json& item : value) {
    const Json wrapped{{"id", item}};
    ids.push_back(JsonObject(wrapped, object.where() + ": " + std::string(key))
                      .integer("id", 0, kMaxTokenId));
  }
  return ids;
}

std::optional<int64_t> parse_token_id(JsonObject& object, std::string_view key,
                                      std::vector<int64_t> default_value) {
  const std::vector<int64_t> ids = parse_token_ids(object, key, std::move(default_value));
  if (ids.size() > 1) object.fail(key, "should be one id, found a list");
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

std::string parse_torch_dtype(JsonObject& object) {
  const char* key = object.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string dtype = object.string_or(key, "float32");
  if (dtype != "float32" && dtype != "bfloat16" && dtype != "float16") {
    object.fail_unsupported(key, dtype, "float32, bfloat16 and float16");
  }
  return dtype;
}

/// Absent keys and null, which a family without a default treats alike.
int64_t parse_num_kv_heads(JsonObject& object, int64_t default_value, int64_t num_heads) {
  const bool is_null =
      object.json().contains("num_key_value_heads") && object.at("num_key_value_heads").is_null();
  if (default_value == 0 || is_null) default_value = num_heads;
  if (default_value > num_heads && !object.has("num_key_value_heads"))
    object.fail("num_key_value_heads", "(default " + std::to_string(default_value) +
                                           ") should be at most num_attention_heads " +
                                           std::to_string(num_heads) + ": name the key");
  return object.integer_or("num_key_value_heads", default_value, 1, num_heads);
}

/// An absent key gives the family's default; null gives no window.
std::optional<int64_t> parse_sliding_window(JsonObject& object, int64_t default_value) {
  if (object.json().contains("sliding_window") && object.at("sliding_window").is_null())
    return std::nullopt;
  return object.integer_or("sliding_window", default_value, 1, 1 << 30);
}

void parse_sizes(JsonObject& object, const FamilyDefaults& defaults, LlamaConfig& config) {
  config.vocab_size = object.integer_or("vocab_size", defaults.vocab_size, 1, 1 << 24);
  config.hidden_size = object.integer_or("hidden_size", config.hidden_size, 1, 1 << 20);
  config.intermediate_size =
      object.integer_or("intermediate_size", defaults.intermediate_size, 1, 1 << 22);
  config.num_layers = object.integer_or("num_hidden_layers", config.num_layers, 1, 10'000);
  config.num_heads = object.integer_or("num_attention_heads", config.num_heads, 1, 1 << 16);
  config.num_kv_heads = parse_num_kv_heads(object, defaults.num_kv_heads, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    object.fail("num_key_value_heads", "should divide num_attention_heads " +
                                           std::to_string(config.num_heads) + ", found " +
                                           std::to_string(config.num_kv_heads));
  }
  const int64_t head_dim =
      defaults.head_dim > 0 ? defaults.head_dim : config.hidden_size / config.num_heads;
  config.head_dim = object.integer_or("head_dim", head_dim, 1, 1 << 16);
  if (config.head_dim < 2 || config.head_dim % 2 != 0) {
    object.fail("head_dim", "(default: hidden_size / num_attention_heads) should be even, found " +
                                std::to_string(config.head_dim));
  }
  config.max_position_embeddings =
      object.integer_or("max_position_embeddings", defaults.max_position_embeddings, 1, 1 << 30);
}

std::string rope_type(RopeKind kind) {
  if (kind == RopeKind::kLinear) return "linear";
  if (kind == RopeKind::kDynamic) return "dynamic";
  return kind == RopeKind::kYarn ? "yarn" : "llama3";
}

Json write_rope_scaling(const Rope& rope) {
  if (rope.kind == RopeKind::kDefault) return nullptr;
  Json json{{"rope_type", rope_type(rope.kind)}, {"factor", rope.factor}};
  if (rope.kind == RopeKind::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.kind == RopeKind::kYarn) {
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
    json["attention_factor"] = rope.attention_factor;
  }
  return json;
}

Json write_optional(const std::optional<int64_t>& id) { return id ? Json(*id) : Json(nullptr); }

std::vector<int64_t> as_list(const std::optional<int64_t>& id) {
  return id ? std::vector{*id} : std::vector<int64_t>{};
}

Json write_ids(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

}  // namespace

const ModelFamily& LlamaConfig::family() const {
  if (const ModelFamily* const found = find_model_family(model_type)) return *found;
  throw Error(ErrorKind::kUnsupported, "no model family is '" + model_type +
                                           "'; this build supports " + model_family_names());
}

int64_t LlamaConfig::num_parameters() const {
  int64_t block = 0;
  for (const NormLayer& norm : family().norms(*this)) block += norm.size;
  for (const LinearLayer& layer : family().linear_layers(*this))
    block += layer.out * layer.in + (layer.has_bias ? layer.out : 0);
  const int64_t embeddings = vocab_size * hidden_size * (tie_word_embeddings ? 1 : 2);
  return embeddings + num_layers * block + hidden_size;
}

LlamaConfig parse_llama_config(std::string_view json, std::string_view origin) {
  const Json document = parse_json(json, origin, {.max_bytes = kMaxConfigBytes});
  JsonObject object(document, std::string(origin));
  const ModelFamily& family = parse_family(object);
  check_unsupported(object, family);
  LlamaConfig config;
  config.model_type = family.model_type;
  const FamilyDefaults& defaults = family.defaults;
  parse_sizes(object, defaults, config);
  config.rms_norm_eps = number_within(object, "rms_norm_eps", config.rms_norm_eps, 1e-30, 1);
  config.tie_word_embeddings = object.boolean_or("tie_word_embeddings", false);
  if (family.has_key("attention_bias"))
    config.attention_bias = object.boolean_or("attention_bias", false);
  if (family.has_key("mlp_bias")) config.mlp_bias = object.boolean_or("mlp_bias", false);
  if (family.has_key("sliding_window"))
    config.sliding_window = parse_sliding_window(object, defaults.sliding_window);
  config.initializer_range =
      number_within(object, "initializer_range", config.initializer_range, 0, 1);
  config.rope = parse_rope(object, config.max_position_embeddings);
  config.bos_token_id = parse_token_id(object, "bos_token_id", as_list(defaults.bos_token_id));
  config.eos_token_ids = parse_token_ids(object, "eos_token_id", as_list(defaults.eos_token_id));
  config.pad_token_id = parse_token_id(object, "pad_token_id", {});
  config.torch_dtype = parse_torch_dtype(object);
  return config;
}

LlamaConfig read_llama_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return parse_llama_config(read_file(path, kMaxConfigBytes), path.string());
}

std::vector<int64_t> end_of_text_ids(const std::filesystem::path& folder,
                                     const LlamaConfig& config) {
  std::vector<int64_t> ids = config.eos_token_ids;
  const std::filesystem::path path = folder / "generation_config.json";
  std::error_code none;
  if (std::filesystem::exists(path, none)) {
    const Json document = parse_json(read_file(path, kMaxConfigBytes), path.string());
    JsonObject object(document, path.string());
    ids = parse_token_ids(object, "eos_token_id", ids);
    if (ids.empty()) ids = config.eos_token_ids;
  }
  std::erase_if(ids, [&](int64_t id) { return id >= config.vocab_size; });
  return ids;
}

std::string format_llama_config(const LlamaConfig& config) {
  const ModelFamily& family = config.family();
  std::map<std::string, Json> document{
      {"architectures", Json::array({family.architectures.front()})},
      {"bos_token_id", write_optional(config.bos_token_id)},
      {"eos_token_id", write_ids(config.eos_token_ids)},
      {"head_dim", config.head_dim},
      {"hidden_size", config.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"model_type", config.model_type},
      {"num_attention_heads", config.num_heads},
      {"num_hidden_layers", config.num_layers},
      {"num_key_value_heads", config.num_kv_heads},
      {"pad_token_id", write_optional(config.pad_token_id)},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_scaling", write_rope_scaling(config.rope)},
      {"rope_theta", config.rope.theta},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"torch_dtype", config.torch_dtype},
      {"use_cache", true},
      {"vocab_size", config.vocab_size}};
  const std::map<std::string_view, Json> optional_keys{
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias},
      {"sliding_window", write_optional(config.sliding_window)}};
  for (const std::string_view key : family.keys) document.emplace(key, optional_keys.at(key));
  for (const RequiredSetting& setting : family.required)
    if (setting.is_written)
      std::visit([&](auto value) { document.emplace(setting.key, value); }, setting.value);
  std::string text = Json(document).dump(2) + "\n";
  parse_llama_config(text, "config.json");
  return text;
}

}  // namespace xffl::checkpoint
