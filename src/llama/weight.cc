#include "xffl/llama/weight.h"

#include <torch/types.h>

#include "embedding_rows.h"
#include "gpu_kernels.h"
#include "onednn_linear.h"
#include "own_product.h"
#include "pointwise.h"
#include "product.h"

namespace xffl::llama {
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
  if (gradient.scalar_type() == at::kFloat && onednn_is_worth_copies(a_NM)) {
    accumulate(gradient, onednn_linear(a_NM.t(), b_NK.t(), {}), scale, empty_);
    empty_ = false;
    return;
  }
  if (gpu::add_product(gradient, a_NM, b_NK, scale, empty_)) {
    empty_ = false;
    return;
  }
  if (scale == 1 && own_product(gradient, a_NM.t(), b_NK, !empty_)) {
    empty_ = false;
    return;
  }
  const at::Tensor wide_a_NM = widen(a_NM);
  if (wide_a_NM.scalar_type() == gradient.scalar_type()) {
    // With beta 0 the old content is not read, even if it is NaN.
    gradient.addmm_(wide_a_NM.t(), widen(b_NK), empty_ ? 0 : 1, scale);
    empty_ = false;
    return;
  }
  accumulate(gradient, llama::multiply(a_NM.t(), b_NK), scale, empty_);
  empty_ = false;
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
