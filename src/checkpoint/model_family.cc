#include "xffl/checkpoint/model_family.h"

#include <algorithm>

#include "xffl/checkpoint/llama_config.h"

namespace xffl::checkpoint {
namespace {

struct Biases {
  bool qkv = false;
  bool output = false;
  bool mlp = false;
};

std::vector<LinearLayer> block_layers(const LlamaConfig& config, const Biases& biases) {
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  return {{"self_attn", "q_proj", queries, hidden, biases.qkv},
          {"self_attn", "k_proj", keys, hidden, biases.qkv},
          {"self_attn", "v_proj", keys, hidden, biases.qkv},
          {"self_attn", "o_proj", hidden, queries, biases.output},
          {"mlp", "gate_proj", inner, hidden, biases.mlp},
          {"mlp", "up_proj", inner, hidden, biases.mlp},
          {"mlp", "down_proj", hidden, inner, biases.mlp}};
}

std::vector<LinearLayer> layers_without_biases(const LlamaConfig& config) {
  return block_layers(config, {});
}

std::vector<LinearLayer> layers_with_biases_of_config(const LlamaConfig& config) {
  return block_layers(config, {config.attention_bias, config.attention_bias, config.mlp_bias});
}

std::vector<LinearLayer> layers_with_qkv_biases(const LlamaConfig& config) {
  return block_layers(config, {.qkv = true});
}

std::vector<NormLayer> two_norms(const LlamaConfig& config) {
  return {{"input_layernorm", config.hidden_size},
          {"post_attention_layernorm", config.hidden_size}};
}

// The norms of queries and keys apply to each head, before RoPE.
std::vector<NormLayer> norms_with_qk(const LlamaConfig& config) {
  return {{"input_layernorm", config.hidden_size},
          {"post_attention_layernorm", config.hidden_size},
          {"self_attn.q_norm", config.head_dim},
          {"self_attn.k_norm", config.head_dim}};
}

constexpr std::string_view kLlamaArchitectures[] = {"LlamaForCausalLM", "LLaMAForCausalLM"};
constexpr std::string_view kMistralArchitectures[] = {"MistralForCausalLM"};
constexpr std::string_view kQwen2Architectures[] = {"Qwen2ForCausalLM"};
constexpr std::string_view kQwen3Architectures[] = {"Qwen3ForCausalLM"};

constexpr std::string_view kLlamaKeys[] = {"attention_bias", "mlp_bias"};
constexpr std::string_view kMistralKeys[] = {"sliding_window"};
constexpr std::string_view kQwen3Keys[] = {"attention_bias"};

constexpr RequiredSetting kLlamaRequired[] = {{"hidden_act", "silu", /*is_written=*/true},
                                              {"attention_dropout", 0.0, /*is_written=*/true},
                                              {"pretraining_tp", 1.0},
                                              {"partial_rotary_factor", 1.0}};
constexpr RequiredSetting kMistralRequired[] = {{"hidden_act", "silu", /*is_written=*/true},
                                                {"attention_dropout", 0.0, /*is_written=*/true},
                                                {"partial_rotary_factor", 1.0}};
// Without use_sliding_window Hugging Face ignores sliding_window and max_window_layers.
constexpr RequiredSetting kQwenRequired[] = {{"hidden_act", "silu", /*is_written=*/true},
                                             {"attention_dropout", 0.0, /*is_written=*/true},
                                             {"partial_rotary_factor", 1.0},
                                             {"use_sliding_window", false, /*is_written=*/true},
                                             {"layer_types", "full_attention"}};

constexpr ModelFamily kModelFamilies[] = {
    {.model_type = "llama",
     .architectures = kLlamaArchitectures,
     .defaults = {.bos_token_id = 1, .eos_token_id = 2},
     .keys = kLlamaKeys,
     .required = kLlamaRequired,
     .linear_layers = layers_with_biases_of_config,
     .norms = two_norms},
    {.model_type = "mistral",
     .architectures = kMistralArchitectures,
     .defaults = {.intermediate_size = 14336,
                  .num_kv_heads = 8,
                  .max_position_embeddings = 131072,
                  .sliding_window = 4096,
                  .bos_token_id = 1,
                  .eos_token_id = 2},
     .keys = kMistralKeys,
     .required = kMistralRequired,
     .linear_layers = layers_without_biases,
     .norms = two_norms},
    {.model_type = "qwen2",
     .architectures = kQwen2Architectures,
     .defaults = {.vocab_size = 151936,
                  .intermediate_size = 22016,
                  .num_kv_heads = 32,
                  .max_position_embeddings = 32768},
     .keys = {},
     .required = kQwenRequired,
     .linear_layers = layers_with_qkv_biases,
     .norms = two_norms},
    {.model_type = "qwen3",
     .architectures = kQwen3Architectures,
     .defaults = {.vocab_size = 151936,
                  .intermediate_size = 22016,
                  .num_kv_heads = 32,
                  .head_dim = 128,
                  .max_position_embeddings = 32768},
     .keys = kQwen3Keys,
     .required = kQwenRequired,
     .linear_layers = layers_with_biases_of_config,
     .norms = norms_with_qk},
};

}  // namespace

bool ModelFamily::has_key(std::string_view key) const {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

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
