#include "embedding_rows.h"

#include <torch/types.h>

namespace xffl::llama {

void add_float_rows(at::Tensor sum, const at::Tensor& rows_N, const at::Tensor& update_ND) {
  if (sum.is_cuda()) {
    // Sorts the rows; index_add_ adds by atomics, in a different order in each run.
    sum.index_put_({rows_N}, update_ND, true);
  } else {
    sum.index_add_(0, rows_N, update_ND);
  }
}

void add_narrow_rows(at::Tensor gradient, const at::Tensor& rows_N, const at::Tensor& update_ND) {
  const auto [rows_U, inverse_N, counts] = at::_unique2(rows_N, true, true, false);
  const at::Tensor sums_UD = gradient.index_select(0, rows_U).to(at::kFloat);
  add_float_rows(sums_UD, inverse_N, update_ND.to(at::kFloat));
  gradient.index_copy_(0, rows_U, sums_UD.to(gradient.scalar_type()));
}

void add_narrow_rows_at_once(at::Tensor gradient, const at::Tensor& rows_N,
                             const at::Tensor& update_ND) {
  const at::Tensor first_N = at::searchsorted(std::get<0>(rows_N.sort()), rows_N);
  const at::Tensor before_ND = gradient.index_select(0, rows_N).to(at::kFloat);
  at::Tensor sums_ND = at::zeros_like(before_ND);
  sums_ND.index_copy_(0, first_N, before_ND);
  add_float_rows(sums_ND, first_N, update_ND.to(at::kFloat));
  gradient.index_copy_(0, rows_N, sums_ND.index_select(0, first_N).to(gradient.scalar_type()));
}

}  // namespace xffl::llama
