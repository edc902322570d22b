// A LoRA adapter's (Hu et al., 2021) part of a linear layer, forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

#include "xffl/llama/weight.h"

namespace xffl::llama {

/// Dropout of A's input, as in PEFT: an element is zero with `probability`, else divided by 1 -
/// probability. `seed` determines the masks of all layers; without a seed there is no dropout.
struct LoraDropout {
  double probability = 0;
  std::optional<uint64_t> seed{};
};

/// scaling * dropout(x) A^T B^T, with A [rank, in], B [out, rank].
struct Lora {
  Weight* a = nullptr;  // null: no adapter
  Weight* b = nullptr;
  double scaling = 0;
  const LoraDropout* dropout = nullptr;  // null: none
  uint64_t layer = 0;                    // distinct for each layer
};

/// The state that backward needs beside x.
struct LoraTape {
  at::Tensor h_BTR;              // dropout(x) A^T
  std::optional<uint64_t> seed;  // the mask's seed
};

/// y += lora(x).
LoraTape add_lora(at::Tensor y_BTE, const at::Tensor& x_BTD, const Lora& lora);

/// Adds the gradients of A and B to their weights, and the gradient of x to grad_x.
void add_lora_gradients(const Lora& lora, const LoraTape& tape, const at::Tensor& grad_NE,
                        const at::Tensor& x_ND, at::Tensor& grad_x_ND);

}  // namespace xffl::llama
