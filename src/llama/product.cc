#include "product.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "on_cpu.h"
#include "xffl/kernels/cpu/bf16_product.h"

namespace xffl::llama {
namespace {

bool is_emulated(const at::Tensor& x) {
  static const bool has_bf16 = at::get_cpu_capability() != "AVX2";
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && !has_bf16;
}

constexpr int64_t kMinSide = 32;                      // narrower results leave tiles half empty
constexpr int64_t kSplitRows = 16, kSplitWidth = 48;  // tiles; a tile belongs to one thread

bool is_bf16_matrix(const at::Tensor& x) {
  return x.is_cpu() && x.dim() == 2 && x.scalar_type() == at::kBFloat16;
}

bool has_rows(const at::Tensor& x) { return x.stride(1) == 1 && x.stride(0) >= x.size(1); }

// Splits the longer side of the result among threads.
template <class Body>
void for_parts(int64_t rows, int64_t width, const Body& body) {
  const bool by_rows = rows >= width;
  const int64_t size = by_rows ? rows : width, unit = by_rows ? kSplitRows : kSplitWidth;
  const int64_t units = (size + unit - 1) / unit;
  at::parallel_for(0, units, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * unit, end = std::min(last * unit, size);
    body(by_rows ? kernels::ProductPart{begin, end, 0, width}
                 : kernels::ProductPart{0, rows, begin, end});
  });
}

constexpr int64_t kMinRows = 16;  // memory bounds products with fewer rows

using Operator = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, c10::List<std::optional<at::Scalar>>,
                            std::optional<std::string_view>);

// LibTorch's linear operator for its graph compiler; a LibTorch build without oneDNN lacks the
// operator.
const std::optional<c10::OperatorHandle>& linear_operator() {
  static const std::optional<c10::OperatorHandle> found =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return found;
}

// The family of an AMD processor with AVX-512 (0x19: Zen 3 and 4, 0x1a: Zen 5); 0 for others.
unsigned amd_family_with_avx512() {
#ifdef __x86_64__
  if (!__builtin_cpu_is("amd") || !__builtin_cpu_supports("avx512f")) return 0;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  __get_cpuid(1, &eax, &ebx, &ecx, &edx);
  return ((eax >> 8) & 0xf) + ((eax >> 20) & 0xff);
#else
  return 0;
#endif
}

bool is_float_matrix(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() / x.size(-1) >= kMinRows;
}

}  // namespace

bool has_own_product(const at::Tensor& a_NM, const at::Tensor& b_MK) {
  if (!is_bf16_matrix(a_NM) || !is_bf16_matrix(b_MK) || !kernels::has_bf16_product()) return false;
  const int64_t depth = a_NM.size(1);
  if (a_NM.size(0) < kMinSide || b_MK.size(1) < kMinSide || depth < kMinSide) return false;
  const bool is_even = depth % 2 == 0;
  return (has_rows(a_NM) ? is_even && a_NM.stride(0) % 2 == 0 : has_rows(a_NM.t())) &&
         (has_rows(b_MK) || (has_rows(b_MK.t()) && is_even));
}

bool own_product(const at::Tensor& out_NK, const at::Tensor& a_NM, const at::Tensor& b_MK,
                 bool add) {
  if (!has_own_product(a_NM, b_MK) || !has_rows(out_NK)) return false;
  const bool is_wide = out_NK.scalar_type() == at::kFloat;
  if (!is_wide && (add || out_NK.scalar_type() != at::kBFloat16)) return false;
  kernels::Bf16Product product;
  product.rows = a_NM.size(0);
  product.width = b_MK.size(1);
  product.depth = a_NM.size(1);
  product.a = const_data<Bf16>(a_NM);
  product.a_transposed = !has_rows(a_NM);
  product.a_row = a_NM.stride(product.a_transposed ? 1 : 0);
  product.b = const_data<Bf16>(b_MK);
  product.b_transposed = !has_rows(b_MK);
  product.b_row = b_MK.stride(product.b_transposed ? 1 : 0);
  if (is_wide) {
    product.wide_c = mutable_data<float>(out_NK);
  } else {
    product.narrow_c = mutable_data<Bf16>(out_NK);
  }
  product.c_row = out_NK.stride(0);
  product.add = add;
  for_parts(product.rows, product.width,
            [&](const kernels::ProductPart& part) { kernels::multiply_bf16(product, part); });
  return true;
}

bool onednn_is_faster(const at::Tensor& x) {
  static const bool fits = amd_family_with_avx512() != 0 && linear_operator().has_value();
  return fits && is_float_matrix(x);
}

bool onednn_is_worth_copies(const at::Tensor& x) {
  static const bool fits = amd_family_with_avx512() >= 0x1a && linear_operator().has_value();
  return fits && is_float_matrix(x);
}

at::Tensor onednn_linear(const at::Tensor& x_ND, const at::Tensor& w_ED,
                         const std::optional<at::Tensor>& bias_E) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  static const auto linear = linear_operator()->typed<Operator>();
  return linear.call(x_ND, w_ED, bias_E, "none", c10::List<std::optional<at::Scalar>>(),
                     std::nullopt);
}

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
