// Causal attention of bfloat16 by AVX512-BF16's dot products of pairs: twice the rate of float32's,
// with sums in float32.
#pragma once

#include "xffl/kernels/cpu/block.h"

namespace xffl::kernels {

/// Replaces the attention of a set for AVX-512; false, unchanged, where the processor has no
/// AVX512-BF16.
bool add_bf16_attention(BlockKernels<Bf16>& set);

}  // namespace xffl::kernels
