#include "xffl/llama/weight.h"

#include <torch/types.h>

#include <utility>

#include "pointwise.h"
#include "product.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::llama {
namespace {

// Adds to float32 or float64, in the order of the rows on a CPU. A GPU has a fixed order, too.
void add_float_rows(at::Tensor sum, const at::Tensor& rows_N, const at::Tensor& update_ND) {
  if (sum.is_cuda()) {
    // index_put_ sorts the rows; index_add_ adds by atomics, in a different order in each run.
    sum.index_put_({rows_N}, update_ND, true);
  } else {
    sum.index_add_(0, rows_N, update_ND);
  }
}

}  // namespace

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

void Weight::add(const at::Tensor& update) {
  if (!is_trained()) return;
  if (empty_) {
    gradient.copy_(update);
  } else {
    gradient.add_(update);
  }
  empty_ = false;
}

void Weight::add_product(const at::Tensor& a_NM, const at::Tensor& b_NK, double scale) {
  if (!is_trained()) return;
  const bool overwrite = std::exchange(empty_, false);
  if (gradient.scalar_type() == at::kFloat && onednn_is_worth_copies(a_NM))
    return accumulate(gradient, onednn_linear(a_NM.t(), b_NK.t(), {}), scale, overwrite);
  if (kernels::gpu::add_product(gradient, a_NM, b_NK, scale, overwrite)) return;
  if (scale == 1 && own_product(gradient, a_NM.t(), b_NK, !overwrite)) return;
  const at::Tensor wide_a_NM = widen(a_NM);
  if (wide_a_NM.scalar_type() != gradient.scalar_type())
    return accumulate(gradient, llama::multiply(a_NM.t(), b_NK), scale, overwrite);
  // With beta 0 addmm does not read the old content, even if the content is NaN.
  gradient.addmm_(wide_a_NM.t(), widen(b_NK), overwrite ? 0 : 1, scale);
}

void Weight::add_rows(const at::Tensor& rows_N, const at::Tensor& update_ND) {
  if (!is_trained()) return;
  finish();
  if (gradient.element_size() < 4) {
    if (gradient.is_cuda()) return add_narrow_rows_at_once(gradient, rows_N, update_ND);
    return add_narrow_rows(gradient, rows_N, update_ND);
  }
  add_float_rows(gradient, rows_N, update_ND.to(gradient.scalar_type()));
}

void Weight::finish() {
  if (empty_ && is_trained()) gradient.zero_();
  empty_ = false;
}

}  // namespace xffl::llama
