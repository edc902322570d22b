#include "product.h"

#include <ATen/Version.h>
#include <torch/types.h>

#include "onednn_linear.h"
#include "own_product.h"

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
  if (has_own_product(a_NM, b_MK)) {
    const at::Tensor out_NK = at::empty({a_NM.size(0), b_MK.size(1)}, a_NM.options());
    own_product(out_NK, a_NM, b_MK);
    return out_NK;
  }
  return at::mm(widen(a_NM), widen(b_MK)).to(a_NM.scalar_type());
}

void multiply_into(at::Tensor out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK) {
  if (own_product(out_NK, a_NM, b_MK)) return;
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
  const bool is_first = !sum_NK.defined();
  if (onednn_is_faster(a_NM)) {
    const at::Tensor product_NK = onednn_linear(a_NM, b_MK.t(), {});
    sum_NK = is_first ? product_NK : sum_NK.add_(product_NK);
    return;
  }
  if (has_own_product(a_NM, b_MK) && (is_first || sum_NK.scalar_type() == at::kFloat)) {
    if (is_first)
      sum_NK = at::empty({a_NM.size(0), b_MK.size(1)}, a_NM.options().dtype(at::kFloat));
    own_product(sum_NK, a_NM, b_MK, !is_first);
    return;
  }
  const at::Tensor wide_a_NM = widen(a_NM), wide_b_MK = widen(b_MK);
  if (is_first) {
    sum_NK = at::mm(wide_a_NM, wide_b_MK);
  } else if (sum_NK.scalar_type() == wide_a_NM.scalar_type()) {
    sum_NK.addmm_(wide_a_NM, wide_b_MK);
  } else {
    sum_NK.add_(at::mm(wide_a_NM, wide_b_MK));
  }
}

at::Tensor multiply_linear(const at::Tensor& x_BTD, const at::Tensor& w_ED,
                           const std::optional<at::Tensor>& bias_E) {
  if (onednn_is_faster(x_BTD)) return onednn_linear(x_BTD, w_ED, bias_E);
  if (const at::Tensor x_ND = x_BTD.reshape({-1, x_BTD.size(-1)});
      !bias_E && has_own_product(x_ND, w_ED.t())) {
    std::vector<int64_t> shape = x_BTD.sizes().vec();
    shape.back() = w_ED.size(0);
    return llama::multiply(x_ND, w_ED.t()).view(shape);
  }
  if (!is_emulated(x_BTD)) return at::linear(x_BTD, w_ED, bias_E);
  std::optional<at::Tensor> wide_bias_E;
  if (bias_E) wide_bias_E = widen(*bias_E);
  return at::linear(widen(x_BTD), widen(w_ED), wide_bias_E).to(x_BTD.scalar_type());
}

}  // namespace xffl::llama
