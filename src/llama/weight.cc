#include "xffl/llama/weight.h"

#include <torch/types.h>

#include "gpu_kernels.h"
#include "onednn_linear.h"
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
  const at::Tensor wide_a_NM = widen(a_NM);
  if (wide_a_NM.scalar_type() == gradient.scalar_type()) {
    // With beta 0 the old content is not read, be it NaN.
    gradient.addmm_(wide_a_NM.t(), widen(b_NK), empty_ ? 0 : 1, scale);
    empty_ = false;
    return;
  }
  const at::Tensor product_MK = at::mm(a_NM.t(), b_NK);
  accumulate(gradient, product_MK, scale, empty_);
  empty_ = false;
}

void Weight::add_rows(const at::Tensor& rows_N, const at::Tensor& update_ND) {
  if (!is_trained()) return;
  finish();
  const at::Tensor wide_ND = update_ND.to(gradient.scalar_type());
  if (gradient.is_cuda()) {
    // By sorting the rows; index_add_ adds by atomics, in another order in each run.
    gradient.index_put_({rows_N}, wide_ND, true);
  } else {
    gradient.index_add_(0, rows_N, wide_ND);
  }
}

void Weight::finish() {
  if (empty_ && is_trained()) gradient.zero_();
  empty_ = false;
}

}  // namespace xffl::llama
