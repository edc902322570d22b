// Causal attention of bfloat16 by AVX512-BF16's dot products of pairs: twice the rate of float32's,
// with sums in float32.
#pragma once

#include "cpu_kernels.h"

namespace xffl::llama {

/// Replaces the attention of a set for AVX-512; false, unchanged, where the processor has no
/// AVX512-BF16.
bool add_bf16_attention(CpuKernels<Bf16>& set);

}  // namespace xffl::llama
