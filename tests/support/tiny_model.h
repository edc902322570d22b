// A model of three small tensors, for federations whose trainers do not compute.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "xffl/base/file.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::test {

inline constexpr int kTinyRows = 16;

/// Writes the model folder `folder`, which is removed before. The first tensor has `rows` rows of
/// 16 bytes; `value` gives the value of each tensor's element i.
inline void write_tiny_model(const std::filesystem::path& folder, int rows,
                             const std::function<float(size_t i)>& value) {
  std::filesystem::remove_all(folder);
  const std::vector<checkpoint::TensorSpec> tensors = {
      {"model.embed_tokens.weight", checkpoint::Dtype::kBF16, {rows, 8}},
      {"model.layers.0.mlp.up_proj.weight", checkpoint::Dtype::kBF16, {12, 8}},
      {"model.norm.weight", checkpoint::Dtype::kBF16, {8}}};
  checkpoint::ModelWriter writer(folder, tensors);
  for (const checkpoint::TensorSpec& tensor : tensors) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    std::vector<std::byte> bytes(values.size() * 2);
    checkpoint::from_float(values, checkpoint::Dtype::kBF16, bytes);
    writer.write(bytes);
  }
  writer.finish();
  checkpoint::LlamaConfig config;
  config.vocab_size = rows;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  write_file_atomic(folder / "config.json", checkpoint::format_llama_config(config));
}

}  // namespace xffl::test
