// Products of bfloat16 matrices by AVX512-BF16's dot products, summed in float32.
//
// These products are for processors without AMX. At a small LLaMA's shapes a Zen 4 core of 224
// GFLOP/s reaches 190 to 225 GFLOP/s with these products, and 170 to 205 with oneDNN's. These
// products sum a weight's gradient in float32, whereas oneDNN rounds each product to bfloat16
// first.
#pragma once

#include <cstdint>

#include "xffl/kernels/types.h"

namespace xffl::kernels {

/// C_MN = A_MK B_KN, rounded once to `narrow_c`, or assigned or added to `wide_c`. A matrix's rows
/// are contiguous, `*_row` elements apart. K and a_row are even unless A is transposed.
struct Bf16Product {
  int64_t rows = 0, width = 0, depth = 0;  // M, N, K
  const Bf16* a = nullptr;                 // M x K; transposed: stored K x M
  int64_t a_row = 0;
  bool a_transposed = false;
  const Bf16* b = nullptr;  // K x N; transposed: stored N x K
  int64_t b_row = 0;
  bool b_transposed = false;
  Bf16* narrow_c = nullptr;  // the caller sets exactly one of narrow_c and wide_c
  float* wide_c = nullptr;
  int64_t c_row = 0;
  bool add = false;  // adds to wide_c instead of assigning
};

/// Rows [row_begin, row_end) and columns [begin, end) of C.
struct ProductPart {
  int64_t row_begin, row_end, begin, end;
};

/// Whether the processor has AVX512-BF16 and lacks AMX. On processors with AMX oneDNN is faster.
bool has_bf16_product();

/// Computes a part of C. The bits of C do not depend on its division into parts. Allocates up to 6
/// MB for packed factors and sums. Requires has_bf16_product().
void multiply_bf16(const Bf16Product& product, const ProductPart& part);

}  // namespace xffl::kernels
