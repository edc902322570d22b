#include "product.h"

#include <ATen/Version.h>
#include <torch/types.h>

#include "onednn_linear.h"

namespace xffl::llama {
namespace {

bool is_emulated(const at::Tensor& x) {
  static const bool has_bf16 = at::get_cpu_capability() != "AVX2";
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && !has_bf16;
}

}  // namespace

at::Tensor widen(const at::Tensor& x) { return is_emulated(x) ? x.to(at::kFloat) : x; }

at::Tensor multiply(const at::Tensor& a_NM, const at::Tensor& b_MK) {
  if (onednn_is_faster(a_NM)) return onednn_linear(a_NM, b_MK.t(), {});
  return at::mm(widen(a_NM), widen(b_MK)).to(a_NM.scalar_type());
}

void multiply_into(at::Tensor out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK) {
  const bool narrows = b_MK.size(1) <= b_MK.size(0);
  if (narrows ? onednn_is_faster(a_NM) : onednn_is_worth_copies(a_NM)) {
    out_NK.copy_(onednn_linear(a_NM, b_MK.t(), {}));
  } else if (is_emulated(a_NM)) {
    out_NK.copy_(at::mm(widen(a_NM), widen(b_MK)));
  } else {
    at::mm_out(out_NK, a_NM, b_MK);
  }
}

void add_multiplied(at::Tensor& sum_NK, const at::Tensor& a_NM, const at::Tensor& b_MK) {
  if (onednn_is_faster(a_NM)) {
    const at::Tensor product_NK = onednn_linear(a_NM, b_MK.t(), {});
    sum_NK = sum_NK.defined() ? sum_NK.add_(product_NK) : product_NK;
  } else if (sum_NK.defined()) {
    sum_NK.addmm_(widen(a_NM), widen(b_MK));
  } else {
    sum_NK = at::mm(widen(a_NM), widen(b_MK));
  }
}

at::Tensor multiply_linear(const at::Tensor& x_BTD, const at::Tensor& w_ED,
                           const std::optional<at::Tensor>& bias_E) {
  if (onednn_is_faster(x_BTD)) return onednn_linear(x_BTD, w_ED, bias_E);
  if (!is_emulated(x_BTD)) return at::linear(x_BTD, w_ED, bias_E);
  std::optional<at::Tensor> wide_bias_E;
  if (bias_E) wide_bias_E = widen(*bias_E);
  return at::linear(widen(x_BTD), widen(w_ED), wide_bias_E).to(x_BTD.scalar_type());
}

}  // namespace xffl::llama
