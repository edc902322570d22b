// Products of bfloat16 matrices by AVX512-BF16's dot products, summed in float32.
//
// For processors without AMX. oneDNN reaches 170 to 205 of the 224 GFLOP/s of a Zen 4 core at a
// small LLaMA's shapes, these 190 to 225; and a weight's gradient is added to in float32, instead
// of rounded to bfloat16 first. No torch header.
#pragma once

#include <cstdint>

#include "xffl/kernels/types.h"

namespace xffl::kernels {

/// C_MN = A_MK B_KN, rounded once to `narrow_c`; or `wide_c` becomes that, or has it added. Rows
/// are contiguous, `*_row` elements apart. K is even, and so is a_row, unless A is transposed.
struct Bf16Product {
  int64_t rows = 0, width = 0, depth = 0;  // M, N, K
  const Bf16* a = nullptr;                 // M x K; transposed: stored K x M
  int64_t a_row = 0;
  bool a_transposed = false;
  const Bf16* b = nullptr;  // K x N; transposed: stored N x K
  int64_t b_row = 0;
  bool b_transposed = false;
  Bf16* narrow_c = nullptr;  // exactly one of both
  float* wide_c = nullptr;
  int64_t c_row = 0;
  bool add = false;  // to wide_c
};

/// Rows [row_begin, row_end) and columns [begin, end) of C.
struct ProductPart {
  int64_t row_begin, row_end, begin, end;
};

/// Whether the processor has AVX512-BF16, and not AMX, with which oneDNN is faster.
bool has_bf16_product();

/// Computes a part of C, whose bits do not depend on how it is cut into parts. Allocates up to 6 MB
/// for packed factors and sums. Only if has_bf16_product().
void multiply_bf16(const Bf16Product& product, const ProductPart& part);

}  // namespace xffl::kernels
