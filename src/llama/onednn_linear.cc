#include "onednn_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace xffl::llama {
namespace {

constexpr int64_t kMinRows = 16;  // memory bounds products with fewer rows

using Operator = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, c10::List<std::optional<at::Scalar>>,
                            std::optional<std::string_view>);

// LibTorch's operator for its graph compiler; a build without oneDNN lacks it.
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

}  // namespace xffl::llama
