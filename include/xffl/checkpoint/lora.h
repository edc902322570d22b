// A LoRA adapter (Hu et al., 2021) in the format of Hugging Face's PEFT: a folder with
// adapter_config.json and adapter_model.safetensors.
//
// An adapted linear layer computes y = W x + (alpha / rank) B A x, with A [rank, in] and B
// [out, rank], or alpha / sqrt(rank) with rsLoRA (Kalajdzievski, 2023); all blocks have the same
// rank and alpha. DoRA (Liu et al., 2024) scales each row i of W' = W + (alpha / rank) B A to a
// trained length m[i], its magnitude: y[i] = m[i] / |W'[i]| * (W' x)[i]. The reader rejects
// unimplemented variants by name: ranks per layer, biases, fully trained modules other than the
// embedding and the head.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

struct LoraConfig {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  // of the input of A during training
  /// Names of the family's linear layers (model_family.h), in the order of the blocks.
  std::vector<std::string> target_modules;
  bool rank_stabilized = false;    // PEFT's use_rslora
  bool weight_decomposed = false;  // PEFT's use_dora: with magnitudes
  /// Trained whole beside the adapter: embed_tokens, lm_head, in this order.
  std::vector<std::string> modules_to_save{};
  bool operator==(const LoraConfig&) const = default;

  /// The factor of B A.
  double scaling() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilized ? std::sqrt(r) : r);
  }
  bool targets(std::string_view module) const;
  /// True if equal tensors change the model equally: all but the dropout is equal.
  bool applies_as(const LoraConfig& other) const;
};

/// Sorts the modules and checks all values; `where` names the configuration in errors. Throws
/// kConfig.
LoraConfig checked_lora_config(LoraConfig config, std::string_view where);

/// Reads `folder`/adapter_config.json. Throws kCorrupt for values out of range and kUnsupported for
/// unimplemented settings that change results, with key and value. Ignores other keys.
LoraConfig read_lora_config(const std::filesystem::path& folder);
LoraConfig parse_lora_config(std::string_view json, std::string_view origin);
/// The text of adapter_config.json. base_model_name_or_path is null: the user names the base model
/// when loading the adapter.
std::string format_lora_config(const LoraConfig& config);

/// The tensors of an adapter, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
/// ..., by layer, then by module, A before B. With DoRA the magnitudes [out] of a layer's modules,
/// "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", ..., follow them. The
/// embedding, "base_model.model.model.embed_tokens.weight", comes first and the head,
/// "base_model.model.lm_head.weight", last. Throws kUnsupported for fully trained modules of a
/// model whose head is its embedding.
std::vector<TensorSpec> lora_tensors(const LlamaConfig& model, const LoraConfig& lora, Dtype dtype);

/// Throws kRejected unless the folder holds exactly the adapter's tensors (shapes; F32, F16 or
/// BF16), all finite.
void check_lora_tensors(const ModelFolder& adapter, const LlamaConfig& model,
                        const LoraConfig& lora);

/// Elements [begin, begin + out.size()) of a fresh adapter's tensor, distributed as in PEFT: A
/// uniform in +-1 / sqrt(in) (Kaiming with a = sqrt 5), B zero, magnitudes the lengths of the rows
/// of the base model's weight, fully trained modules those of the base model. The same seed and
/// model give the same bytes on every machine.
///
/// Only magnitudes and fully trained modules read `base`, a piece at a time. Throws kRejected if
/// `base` does not have their weight or a row has no finite length, kInternal without `base`.
void initialize_lora(const TensorSpec& spec, uint64_t seed, int64_t begin, std::span<float> out,
                     const ModelFolder* base = nullptr);

/// Creates `folder` and writes a fresh adapter in F32, without a manifest. `base`, the adapter's
/// model, is needed for magnitudes and fully trained modules.
void write_initial_lora(const std::filesystem::path& folder, const LlamaConfig& model,
                        const LoraConfig& lora, uint64_t seed, const ModelFolder* base = nullptr);

}  // namespace xffl::checkpoint
