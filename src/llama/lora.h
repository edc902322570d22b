// What a LoRA adapter (Hu et al., 2021) adds to a linear layer, forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

#include "xffl/llama/weight.h"

namespace xffl::llama {

/// Of what A reads, as PEFT's: each element is zero with this probability, else divided by the
/// rest. Drawn anew for each layer from `seed`, so that the same seed draws the same again; without
/// one nothing is dropped.
struct LoraDropout {
  double probability = 0;
  std::optional<uint64_t> seed{};
};

/// scaling * dropout(x) A^T B^T, with A [rank, in], B [out, rank].
struct Lora {
  Weight* a = nullptr;  // null when there is none
  Weight* b = nullptr;
  double scaling = 0;
  const LoraDropout* dropout = nullptr;  // null: none
  uint64_t layer = 0;                    // another one for each layer
};

/// What backward needs beside x.
struct LoraTape {
  at::Tensor h_BTR;              // dropout(x) A^T
  std::optional<uint64_t> seed;  // that the mask was drawn from
};

/// y += lora(x).
LoraTape add_lora(at::Tensor y_BTE, const at::Tensor& x_BTD, const Lora& lora);

/// Adds the gradients of A and B to their weights, and that of x to grad_x.
void add_lora_gradients(const Lora& lora, const LoraTape& tape, const at::Tensor& grad_NE,
                        const at::Tensor& x_ND, at::Tensor& grad_x_ND);

}  // namespace xffl::llama
