// One parameter as the model uses it: a value to compute with and a place for its gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

/// Gradients are added straight to `gradient`, a view of somebody's flat buffer; autograd knows
/// only activations. The first addition after clear() overwrites, so nothing is zeroed or copied.
class Weight {
 public:
  at::Tensor value;     // in the compute dtype
  at::Tensor gradient;  // the same shape, float32 (float64 when value is) or value's 16 bits, in
                        // which what is added is rounded; undefined: frozen, it goes nowhere

  bool is_trained() const { return gradient.defined(); }
  /// gradient += update
  void add(const at::Tensor& update);
  /// gradient += scale * a_NM^T b_NK; the product is computed in the dtype of its factors.
  void add_product(const at::Tensor& a_NM, const at::Tensor& b_NK, double scale = 1.0);
  /// gradient[rows_N] += update_ND
  void add_rows(const at::Tensor& rows_N, const at::Tensor& update_ND);

  void clear() { empty_ = true; }
  /// Zeroes the gradient if nothing was added since clear().
  void finish();

 private:
  bool empty_ = true;
};

}  // namespace xffl::llama
