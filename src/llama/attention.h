// Causal attention with grouped queries, forward and backward.
#pragma once

#include <torch/types.h>

#include <optional>

#include "xffl/llama/rope.h"

namespace xffl::llama {

/// Position t of a sequence attends to its positions 0 ... t, or to the positions from its start in
/// `documents` to t; starts are the first tokens of documents or those of within_window().
/// Differentiable. Scores are scaled by 1 / sqrt(H). N is a multiple
/// of K. Falls back to ATen's scaled_dot_product_attention if kernels/ has no faster kernel.
at::Tensor causal_attention(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                            const at::Tensor& v_BTKH, const Documents& documents = {});

/// ATen's scaled_dot_product_attention: causal, or every query attends to the keys of
/// `visible_TT`, to all keys without it.
at::Tensor attention_by_aten(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                             const at::Tensor& v_BTKH, bool is_causal,
                             const std::optional<at::Tensor>& visible_TT = {});

/// Always ATen's causal attention. Flash attention computes all documents in one call, where the
/// GPU has it (kernels::gpu::has_flash_attention); other devices and dtypes compute one at a time.
at::Tensor causal_attention_by_aten(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                                    const at::Tensor& v_BTKH, const Documents& documents = {});

}  // namespace xffl::llama
