// The kernels that have code for x86-64 alone. The files of x86/ implement the functions; no_x86.cc
// replaces them on other processors.
#pragma once

#include <vector>

#include "xffl/kernels/cpu/block.h"
#include "xffl/kernels/cpu/conversions.h"

namespace xffl::kernels::x86 {

/// Appends the sets that this processor can run, the fastest one last.
void add_conversions(std::vector<Conversions>& sets);
void add_block_kernels(std::vector<BlockKernels<float>>& sets);
void add_block_kernels(std::vector<BlockKernels<double>>& sets);
void add_block_kernels(std::vector<BlockKernels<Bf16>>& sets);

/// Replaces the attention of a set for AVX-512 by AVX512-BF16's dot products of pairs, which have
/// twice the rate of float32's products and sum in float32. Returns false and changes nothing if
/// the processor lacks AVX512-BF16.
bool add_bf16_attention(BlockKernels<Bf16>& set);

}  // namespace xffl::kernels::x86
