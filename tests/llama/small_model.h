// A model small enough for float64 autograd, and its values.
#pragma once

#include <torch/types.h>

#include <vector>

#include "xffl/llama/model.h"

namespace xffl::llama {

inline checkpoint::LlamaConfig small_config() {
  checkpoint::LlamaConfig config;
  config.vocab_size = 31;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 10;  // not hidden / heads
  config.rms_norm_eps = 1e-5;
  return config;
}

inline std::vector<at::Tensor> random_values(const std::vector<ParameterSpec>& specs) {
  at::manual_seed(3);
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : specs) {
    values.push_back(at::randn(spec.shape, at::kDouble) * 0.3 +
                     (spec.name.find("norm") != std::string::npos ? 1 : 0));
  }
  return values;
}

/// Weights of a dtype, with gradients of NaN, which the model must overwrite.
inline std::vector<Weight> weights_of(const std::vector<at::Tensor>& values, at::ScalarType dtype) {
  std::vector<Weight> weights(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    weights[i].value = values[i].to(dtype);
    weights[i].gradient =
        at::full_like(values[i], NAN, dtype == at::kDouble ? at::kDouble : at::kFloat);
  }
  return weights;
}

}  // namespace xffl::llama
