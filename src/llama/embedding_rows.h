// An embedding's gradient: adds rows to rows, some of which repeat.
//
// N rows, D wide.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

/// Adds to float32 or float64, in the order of the rows on a CPU; a GPU has a fixed order, too.
void add_float_rows(at::Tensor sum, const at::Tensor& rows_N, const at::Tensor& update_ND);

/// Adds to a gradient in 16 bits. A repeated row would stop growing in 16 bits, so each distinct
/// row is summed in float32 and rounded once.
void add_narrow_rows(at::Tensor gradient, const at::Tensor& rows_N, const at::Tensor& update_ND);

/// The same bits without waiting for a GPU to count the distinct rows: the sum of a repeated row is
/// stored at its first occurrence, and all occurrences write that sum.
void add_narrow_rows_at_once(at::Tensor gradient, const at::Tensor& rows_N,
                             const at::Tensor& update_ND);

}  // namespace xffl::llama
