// The model families: a row of the table in src/checkpoint/model_family.cc describes a family by
// its names in config.json, the settings that its blocks require, and its linear layers.
//
// The reader and the writer of config.json, the tensors of a model and of an adapter, and the
// number of parameters follow from the row. src/llama/ computes the blocks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace xffl::checkpoint {

struct LlamaConfig;  // llama_config.h

// A key of config.json with one supported value, which is also the default of an absent key.
struct RequiredSetting {
  std::string_view key;
  std::variant<std::string_view, double> value;
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

struct ModelFamily {
  std::string_view model_type;                      // in config.json
  std::span<const std::string_view> architectures;  // in config.json; xffl writes the first one
  std::span<const RequiredSetting> required;        // in the order of the checks
  std::vector<LinearLayer> (*linear_layers)(const LlamaConfig& config);  // in a block's order
};

/// All families; the first one is the default.
std::span<const ModelFamily> model_families();
/// The family of a model_type of config.json; null for an unknown one.
const ModelFamily* find_model_family(std::string_view model_type);
/// "llama, ...": the families, for messages.
std::string model_family_names();

}  // namespace xffl::checkpoint
