// One parameter of the model: its value and its gradient's memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace xffl::llama {

/// Layers add gradients directly to `gradient`, a view of a caller's flat buffer; autograd sees
/// activations only. The first addition after clear() overwrites the buffer, which saves zeroing
/// and copies.
class Weight {
 public:
  at::Tensor value;     // in the compute dtype
  at::Tensor gradient;  // the same shape; float32 (float64 for a float64 value) or the value's
                        // 16-bit dtype, which rounds additions; undefined: frozen

  bool is_trained() const { return gradient.defined(); }
  /// gradient += update
  void add(const at::Tensor& update);
  /// gradient += scale * a_NM^T b_NK; the product has the dtype of its factors.
  void add_product(const at::Tensor& a_NM, const at::Tensor& b_NK, double scale = 1.0);
  /// gradient[rows_N] += update_ND
  void add_rows(const at::Tensor& rows_N, const at::Tensor& update_ND);

  void clear() { empty_ = true; }
  /// Zeroes the gradient if there was no addition since clear().
  void finish();

 private:
  bool empty_ = true;
};

// Both functions add N rows of D elements to rows of an embedding's gradient, some of which repeat.

/// Adds to a 16-bit gradient. A repeated row would stop growing in 16 bits, so the function sums
/// each distinct row in float32 and rounds the sum once.
void add_narrow_rows(at::Tensor gradient, const at::Tensor& rows_N, const at::Tensor& update_ND);

/// The same bits as add_narrow_rows(), but the host does not wait for a GPU to count the distinct
/// rows. The function stores the sum of a repeated row at its first occurrence, and all occurrences
/// write that sum.
void add_narrow_rows_at_once(at::Tensor gradient, const at::Tensor& rows_N,
                             const at::Tensor& update_ND);

}  // namespace xffl::llama
