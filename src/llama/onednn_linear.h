// Float32 products by oneDNN, which LibTorch contains and uses for bfloat16 only.
//
// LibTorch multiplies float32 by MKL, which uses AVX2 on AMD's processors. oneDNN uses AVX-512
// there: as fast on processors that split such vectors (Zen 4), up to twice as fast on others (Zen
// 5). The processor's model decides, not a measurement: a machine always gives the same bits.
#pragma once

#include <torch/types.h>

#include <optional>

namespace xffl::llama {

/// Whether oneDNN is faster for products with x as the first factor.
bool onednn_is_faster(const at::Tensor& x);

/// The same for products that need copies: of transposed factors, or of a result wider than its
/// factors.
bool onednn_is_worth_copies(const at::Tensor& x);

/// x w^T + bias, for any strides. No autograd.
at::Tensor onednn_linear(const at::Tensor& x_ND, const at::Tensor& w_ED,
                         const std::optional<at::Tensor>& bias_E);

}  // namespace xffl::llama
