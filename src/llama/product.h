// Matrix products in a dtype for which the device is fast.
//
// On CPUs without bfloat16 instructions LibTorch multiplies bfloat16 element by element, tens of
// times slower than float32. There these functions widen the factors, which is exact, and round the
// result once, like bfloat16 instructions.
#pragma once

#include <torch/types.h>

#include <optional>

namespace xffl::llama {

/// `x` itself, or a float32 copy where products in its dtype are emulated.
at::Tensor widen(const at::Tensor& x);

at::Tensor multiply(const at::Tensor& a_NM, const at::Tensor& b_MK);
void multiply_into(at::Tensor out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// sum += a b. An undefined sum is allocated: in float32 where products in the factors' dtype are
/// emulated or use own_product.h.
void add_multiplied(at::Tensor& sum_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// x w^T + bias
at::Tensor multiply_linear(const at::Tensor& x_BTD, const at::Tensor& w_ED,
                           const std::optional<at::Tensor>& bias_E);

}  // namespace xffl::llama
