// The kernels that have code for x86-64 alone: the files of x86/, or no_x86.cc for other
// processors.
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

/// Replaces the attention of a set for AVX-512 by AVX512-BF16's dot products of pairs: twice the
/// rate of float32's, with sums in float32. False, unchanged, where the processor has none.
bool add_bf16_attention(BlockKernels<Bf16>& set);

}  // namespace xffl::kernels::x86
