// A LLaMA's parameters: the names in Hugging Face's checkpoints, the shapes, and the unit of each
// parameter.
//
// The trainer shards, gathers and recomputes a unit as a whole. The embedding is unit 0, block i is
// unit i + 1, and the final norm and the head (absent when tied) are the last unit. Within a unit
// matrices come first, then vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"

namespace xffl::llama {

struct ParameterSpec {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  int unit = 0;

  bool is_matrix() const { return shape.size() == 2; }
  int64_t num_elements() const;
};

/// The parameters in the order of units.
std::vector<ParameterSpec> parameter_specs(const checkpoint::LlamaConfig& config);

/// The parameters of a LoRA adapter, with the names in PEFT's files; each parameter belongs to the
/// unit of its block, or to that of the embedding or the head that it replaces.
std::vector<ParameterSpec> adapter_specs(const checkpoint::LlamaConfig& config,
                                         const checkpoint::LoraConfig& lora);

}  // namespace xffl::llama
