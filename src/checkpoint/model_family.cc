#include "xffl/checkpoint/model_family.h"

#include "xffl/checkpoint/llama_config.h"

namespace xffl::checkpoint {
namespace {

constexpr std::string_view kLlamaArchitectures[] = {"LlamaForCausalLM", "LLaMAForCausalLM"};

constexpr RequiredSetting kLlamaRequired[] = {{"hidden_act", "silu", /*is_written=*/true},
                                              {"attention_dropout", 0.0, /*is_written=*/true},
                                              {"pretraining_tp", 1.0},
                                              {"partial_rotary_factor", 1.0}};

std::vector<LinearLayer> llama_layers(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  return {{"self_attn", "q_proj", queries, hidden, config.attention_bias},
          {"self_attn", "k_proj", keys, hidden, config.attention_bias},
          {"self_attn", "v_proj", keys, hidden, config.attention_bias},
          {"self_attn", "o_proj", hidden, queries, config.attention_bias},
          {"mlp", "gate_proj", inner, hidden, config.mlp_bias},
          {"mlp", "up_proj", inner, hidden, config.mlp_bias},
          {"mlp", "down_proj", hidden, inner, config.mlp_bias}};
}

constexpr ModelFamily kModelFamilies[] = {
    {.model_type = "llama",
     .architectures = kLlamaArchitectures,
     .required = kLlamaRequired,
     .linear_layers = llama_layers},
};

}  // namespace

std::span<const ModelFamily> model_families() { return kModelFamilies; }

const ModelFamily* find_model_family(std::string_view model_type) {
  for (const ModelFamily& family : kModelFamilies)
    if (family.model_type == model_type) return &family;
  return nullptr;
}

std::string model_family_names() {
  std::string names;
  for (const ModelFamily& family : kModelFamilies)
    names.append(names.empty() ? "" : ", ").append(family.model_type);
  return names;
}

}  // namespace xffl::checkpoint
