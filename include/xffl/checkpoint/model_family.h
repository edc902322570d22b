// The model families: a row of the table in src/checkpoint/model_family.cc describes a family by
// its names in config.json, the defaults of absent keys, the settings that its blocks require, and
// the linear layers and norms of a block.
//
// The reader and the writer of config.json, the tensors of a model and of an adapter, and the
// number of parameters follow from the row. src/llama/ computes the blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace xffl::checkpoint {

struct LlamaConfig;  // llama_config.h

// A key of config.json with one supported value, which is also the default of an absent key. Each
// item of a list needs this value.
struct RequiredSetting {
  std::string_view key;
  std::variant<std::string_view, double, bool> value;
  bool is_written = false;  // in a config.json that xffl makes
};

// A linear layer of a block: model.layers.<i>.<parent>.<name>.weight of the shape [out, in], and a
// bias of the shape [out].
struct LinearLayer {
  std::string_view parent;
  std::string_view name;  // also in LoRA's target_modules
  int64_t out = 0;
  int64_t in = 0;
  bool has_bias = false;

  std::string path() const { return std::string(parent).append(".").append(name); }
};

// A norm of a block: model.layers.<i>.<path>.weight of the shape [size].
struct NormLayer {
  std::string_view path;
  int64_t size = 0;
};

// The values of keys that config.json omits, as in Hugging Face's configuration of the family.
struct FamilyDefaults {
  int64_t vocab_size = 32000;
  int64_t intermediate_size = 11008;
  int64_t num_kv_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 0;  // 0: none
  std::optional<int64_t> bos_token_id{};
  std::optional<int64_t> eos_token_id{};
};

struct ModelFamily {
  std::string_view model_type;                      // in config.json
  std::span<const std::string_view> architectures;  // in config.json; xffl writes the first one
  FamilyDefaults defaults;
  // Keys of config.json that only some families read and write: attention_bias, mlp_bias,
  // sliding_window.
  std::span<const std::string_view> keys;
  std::span<const RequiredSetting> required;  // in the order of the checks
  std::vector<LinearLayer> (*linear_layers)(const LlamaConfig& config);  // in a block's order
  std::vector<NormLayer> (*norms)(const LlamaConfig& config);            // in a block's order

  bool has_key(std::string_view key) const;
};

/// All families; the first one is the default.
std::span<const ModelFamily> model_families();
/// The family of a model_type of config.json; null for an unknown one.
const ModelFamily* find_model_family(std::string_view model_type);
/// "llama, ...": the families, for messages.
std::string model_family_names();

}  // namespace xffl::checkpoint
