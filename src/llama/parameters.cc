#include "xffl/llama/parameters.h"

namespace xffl::llama {
namespace {

void add_block(std::vector<ParameterSpec>& specs, const checkpoint::LlamaConfig& config,
               int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int unit = static_cast<int>(layer) + 1;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({prefix + name, std::move(shape), unit});
  };
  const std::vector<checkpoint::LinearLayer> layers = config.family().linear_layers(config);
  for (const checkpoint::LinearLayer& each : layers)
    add(each.path() + ".weight", {each.out, each.in});
  for (const checkpoint::LinearLayer& each : layers)
    if (each.has_bias) add(each.path() + ".bias", {each.out});
  for (const checkpoint::NormLayer& norm : config.family().norms(config))
    add(std::string(norm.path) + ".weight", {norm.size});
}

}  // namespace

int64_t ParameterSpec::num_elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::vector<ParameterSpec> parameter_specs(const checkpoint::LlamaConfig& config) {
  std::vector<ParameterSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, 0});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_block(specs, config, layer);
  const int last_unit = static_cast<int>(config.num_layers) + 1;
  if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}, last_unit});
  }
  specs.push_back({"model.norm.weight", {config.hidden_size}, last_unit});
  return specs;
}

std::vector<ParameterSpec> adapter_specs(const checkpoint::LlamaConfig& config,
                                         const checkpoint::LoraConfig& lora) {
  const auto tensors = checkpoint::lora_tensors(config, lora, checkpoint::Dtype::kF32);
  const size_t before_blocks = tensors.front().name.ends_with(".embed_tokens.weight") ? 1 : 0;
  const size_t in_a_block =
      (tensors.size() - lora.modules_to_save.size()) / static_cast<size_t>(config.num_layers);
  std::vector<ParameterSpec> specs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_embedding = i < before_blocks;
    const int unit = is_embedding ? 0 : static_cast<int>((i - before_blocks) / in_a_block) + 1;
    specs.push_back({tensors[i].name, tensors[i].shape, unit});
  }
  return specs;
}

}  // namespace xffl::llama
