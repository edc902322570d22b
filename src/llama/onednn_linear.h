// Float32 products by oneDNN, which LibTorch has inside and uses for bfloat16 only.
//
// LibTorch multiplies float32 by MKL, which on AMD's processors stays with AVX2. oneDNN uses
// AVX-512 there: the same speed where the processor splits its vectors (Zen 4), up to twice it
// where it does not (Zen 5). Chosen by the processor, never by measuring: the same machine gives
// the same bits.
#pragma once

#include <torch/types.h>

#include <optional>

namespace xffl::llama {

/// For products whose first factor is x.
bool onednn_is_faster(const at::Tensor& x);

/// The same where it costs copies: of transposed factors, or of a result wider than its factors.
bool onednn_is_worth_copies(const at::Tensor& x);

/// x w^T + bias; strides as they come. No autograd.
at::Tensor onednn_linear(const at::Tensor& x_ND, const at::Tensor& w_ED,
                         const std::optional<at::Tensor>& bias_E);

}  // namespace xffl::llama
