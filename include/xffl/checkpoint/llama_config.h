// The config.json of a LLaMA model, or of another family with its sizes, in both dialects of
// Hugging Face transformers.
//
// transformers 4 writes rope_theta, rope_scaling and torch_dtype; transformers 5 writes
// rope_parameters and dtype. xffl reads both dialects and writes the old keys, which both versions
// of transformers read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "xffl/checkpoint/model_family.h"

namespace xffl::checkpoint {

enum class RopeKind { kDefault, kLinear, kDynamic, kLlama3, kYarn };

struct Rope {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                              // all but default
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3, yarn
  double beta_fast = 32.0;                          // yarn
  double beta_slow = 1.0;                           // yarn
  bool truncate = true;                             // yarn: the ramp begins and ends at whole pairs
  double attention_factor = 1.0;                    // yarn: multiplies cosine and sine
  bool operator==(const Rope&) const = default;
};

struct LlamaConfig {
  std::string model_type{model_families().front().model_type};
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_layers = 32;
  int64_t num_heads = 32;
  int64_t num_kv_heads = 32;
  int64_t head_dim = 128;  // may differ from hidden_size / num_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v and o
  bool mlp_bias = false;        // gate, up and down
  // Position t attends to the last `sliding_window` positions, t included; nullopt: to all.
  std::optional<int64_t> sliding_window{};
  double initializer_range = 0.02;
  Rope rope;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // HF allows one id or a list
  std::optional<int64_t> pad_token_id;
  std::string torch_dtype = "bfloat16";
  bool operator==(const LlamaConfig&) const = default;

  const ModelFamily& family() const;  // of model_type; throws kUnsupported for an unknown one
  int64_t num_parameters() const;
};

/// Reads `folder`/config.json. Throws kCorrupt for values out of range and kUnsupported for
/// unimplemented settings that change results (an unknown model_type, another value of a
/// setting that the family requires, another rope type), with the key, the expected and the found
/// value. Ignores other unknown keys: new versions of transformers add keys.
LlamaConfig read_llama_config(const std::filesystem::path& folder);
LlamaConfig parse_llama_config(std::string_view json, std::string_view origin);
std::string format_llama_config(const LlamaConfig& config);

/// The end-of-text token ids, as in HF's generate(): eos_token_id of
/// `folder`/generation_config.json if set, else of config.json. Omits ids beyond the vocabulary,
/// which no sampler draws. Throws kCorrupt.
std::vector<int64_t> end_of_text_ids(const std::filesystem::path& folder,
                                     const LlamaConfig& config);

}  // namespace xffl::checkpoint
