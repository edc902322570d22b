// Rotary position embedding (Su et al., 2021) in the variants default, linear and llama3, with the
// numerics of Hugging Face's transformers: angles in float32, cosine and sine rounded to the
// activations' dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "xffl/checkpoint/llama_config.h"

namespace xffl::llama {

/// Radians per position for each of the head_dim / 2 rotated pairs: float32 on the CPU.
at::Tensor rope_frequencies(const checkpoint::Rope& rope, int64_t head_dim);

struct RopeTable {
  at::Tensor cos_TF;  // F = head_dim / 2
  at::Tensor sin_TF;
};
RopeTable make_rope_table(const at::Tensor& frequencies_F, int64_t num_positions,
                          const at::TensorOptions& options);

/// Rotates the pairs (i, i + F) of the last dimension by the position's angles; differentiable in
/// x.
at::Tensor apply_rope(const at::Tensor& x_BTNH, const RopeTable& table);

}  // namespace xffl::llama
