// Matrix products in a dtype that the device is fast in.
//
// On CPUs without bfloat16 instructions LibTorch multiplies bfloat16 element by element, tens of
// times slower than float32. There the factors are widened, which is exact, and the result is
// rounded once: what bfloat16 instructions do.
#pragma once

#include <torch/types.h>

#include <optional>

namespace xffl::llama {

/// `x` itself, or a float32 copy where products in its dtype are emulated.
at::Tensor widen(const at::Tensor& x);

at::Tensor multiply(const at::Tensor& a_NM, const at::Tensor& b_MK);
void multiply_into(at::Tensor out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// sum += a b; an undefined sum is made, in float32 where products in that dtype are emulated or
/// our own.
void add_multiplied(at::Tensor& sum_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// x w^T + bias
at::Tensor multiply_linear(const at::Tensor& x_BTD, const at::Tensor& w_ED,
                           const std::optional<at::Tensor>& bias_E);

}  // namespace xffl::llama
