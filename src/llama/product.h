// Matrix products in a dtype for which the device is fast.
//
// On CPUs without bfloat16 instructions LibTorch multiplies bfloat16 element by element, tens of
// times slower than float32. The functions then widen the factors, which is exact, and round the
// result once, like bfloat16 instructions.
#pragma once

#include <torch/types.h>

#include <optional>

namespace xffl::llama {

/// `x` itself, or a float32 copy if LibTorch emulates products in the dtype of x.
at::Tensor widen(const at::Tensor& x);

at::Tensor multiply(const at::Tensor& a_NM, const at::Tensor& b_MK);
void multiply_into(at::Tensor out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// sum += a b. The function allocates an undefined sum. The allocated sum is float32 for
/// own_product(), and if LibTorch emulates products in the factors' dtype.
void add_multiplied(at::Tensor& sum_NK, const at::Tensor& a_NM, const at::Tensor& b_MK);
/// x w^T + bias
at::Tensor multiply_linear(const at::Tensor& x_BTD, const at::Tensor& w_ED,
                           const std::optional<at::Tensor>& bias_E);

/// The products of kernels/cpu/ for bfloat16: out = a b, or out += a b in float32. Returns false,
/// and does nothing, if LibTorch's product is preferable. The choice depends on the processor,
/// dtypes, sizes and strides only. `out` is bfloat16 (rounded once; without `add`) or float32. The
/// bits do not depend on the number of threads.
bool own_product(const at::Tensor& out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK,
                 bool add = false);

/// Whether own_product() accepts the factors.
bool has_own_product(const at::Tensor& a_NM, const at::Tensor& b_MK);

// Float32 products by oneDNN, which LibTorch contains and uses for bfloat16 only.
//
// LibTorch multiplies float32 by MKL, which uses AVX2 on AMD's processors. oneDNN uses AVX-512 on
// AMD's processors: it is as fast as MKL on processors that split AVX-512 vectors (Zen 4), and up
// to twice as fast on others (Zen 5). The processor's model decides, not a measurement, so a
// machine always gives the same bits.

/// Whether oneDNN is faster for products with x as the first factor.
bool onednn_is_faster(const at::Tensor& x);

/// Whether oneDNN is faster for products that need copies: of transposed factors, or of a result
/// wider than its factors.
bool onednn_is_worth_copies(const at::Tensor& x);

/// x w^T + bias, for any strides. No autograd.
at::Tensor onednn_linear(const at::Tensor& x_ND, const at::Tensor& w_ED,
                         const std::optional<at::Tensor>& bias_E);

}  // namespace xffl::llama
