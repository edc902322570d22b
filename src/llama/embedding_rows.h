// The gradient of an embedding: rows are added to rows, of which some come many times.
//
// N rows, D wide.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

/// To float32 or float64, in the order of the rows on a CPU; on a GPU in one order as well.
void add_float_rows(at::Tensor sum, const at::Tensor& rows_N, const at::Tensor& update_ND);

/// To a gradient in 16 bits: a row that comes many times would stop growing in it, so each
/// different row is added up in float32 and rounded once.
void add_narrow_rows(at::Tensor gradient, const at::Tensor& rows_N, const at::Tensor& update_ND);

/// The same bits without waiting for a GPU to say how many rows are different: each of the N has
/// its sum where its row comes first in their order, and all that are of one row write the same.
void add_narrow_rows_at_once(at::Tensor gradient, const at::Tensor& rows_N,
                             const at::Tensor& update_ND);

}  // namespace xffl::llama
