#include "own_product.h"

#include <ATen/Parallel.h>

#include "on_cpu.h"
#include "xffl/kernels/cpu/bf16_product.h"

namespace xffl::llama {
namespace {

constexpr int64_t kMinSide = 32;                      // narrower results leave tiles half empty
constexpr int64_t kSplitRows = 16, kSplitWidth = 48;  // tiles; a tile belongs to one thread

bool is_bf16_matrix(const at::Tensor& x) {
  return x.is_cpu() && x.dim() == 2 && x.scalar_type() == at::kBFloat16;
}

bool has_rows(const at::Tensor& x) { return x.stride(1) == 1 && x.stride(0) >= x.size(1); }

// Cuts the longer side of the result.
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

}  // namespace xffl::llama
