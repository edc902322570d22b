// Products of bfloat16 tensors by the tiles of kernels/cpu/, where these are faster than
// LibTorch's.
#pragma once

#include <torch/types.h>

namespace xffl::llama {

/// out = a b, or out += a b in float32. Returns false, and does nothing, where LibTorch's product
/// is preferable; the choice depends on the processor, dtypes, sizes and strides only. `out` is
/// bfloat16 (rounded once; without `add`) or float32. The same bits on any number of threads.
bool own_product(const at::Tensor& out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK,
                 bool add = false);

/// Whether own_product takes these factors.
bool has_own_product(const at::Tensor& a_NM, const at::Tensor& b_MK);

}  // namespace xffl::llama
