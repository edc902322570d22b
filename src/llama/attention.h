// Causal attention with grouped queries, forward and backward.
#pragma once

#include <torch/types.h>

#include "xffl/llama/documents.h"

namespace xffl::llama {

/// Position t of each sequence attends to positions 0 ... t of its own, or from its document's
/// first; differentiable. Scores are scaled by 1 / sqrt(H). N is a multiple of K. Where no kernel
/// of ours is faster, it is ATen's scaled_dot_product_attention.
at::Tensor causal_attention(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                            const at::Tensor& v_BTKH, const Documents& documents = {});

/// ATen's, in every case; a document at a time where there are several.
at::Tensor causal_attention_by_aten(const at::Tensor& q_BTNH, const at::Tensor& k_BTKH,
                                    const at::Tensor& v_BTKH, const Documents& documents = {});

}  // namespace xffl::llama
