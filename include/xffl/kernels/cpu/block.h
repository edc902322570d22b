// CPU kernels for the parts of a transformer block and of its loss, each in one pass over memory,
// for the processor's instruction set.
//
// T is float, double or Bf16; the kernels compute sums and functions in Wide<T>. Buffers are
// contiguous and do not overlap unless a comment allows it. No function starts threads: callers
// split the rows. llama/pointwise.cc and llama/head_loss.cc define the functions in ATen's
// operations, which are the reference of the tests.
#pragma once

#include <cstdint>
#include <vector>

#include "xffl/kernels/types.h"

namespace xffl::kernels {

/// One key/value head and the `group` query heads that attend to it. Strides are elements from a
/// position to the next; a position's query heads are contiguous.
struct AttentionShape {
  int64_t positions = 0, group = 1, head_dim = 0;
  int64_t q_stride = 0, kv_stride = 0;
  const int64_t* starts = nullptr;  // starts[t]: first position that t sees, ascending; null: 0
};

/// The buffers of attention's backward pass; log_sums is [group][positions].
template <class T>
struct AttentionTensors {
  const T *q, *k, *v, *out, *grad_out;
  const Wide<T>* log_sums;
  T *grad_q, *grad_k, *grad_v;
};

/// C_MN (+)= A_MK B_KN: M is a multiple of 8, and N a multiple of a vector's lanes. a_row and
/// a_step are A's strides; the rows of B and C are contiguous.
template <class W>
using Multiply = void (*)(int64_t rows, int64_t width, int64_t depth, const W* a, int64_t a_row,
                          int64_t a_step, const W* b, int64_t b_row, W* c, int64_t c_row, bool add);

/// The elements of scratch memory that attention and its backward pass need.
int64_t attention_scratch_size(const AttentionShape& shape);

template <class T>
struct BlockKernels {
  using W = Wide<T>;

  /// sum = x + delta where `delta` is not null; y = w sum / rms(sum); inverse[row] = 1 / rms(sum).
  void (*rms_norm)(const T* x_ND, const T* delta_ND, const T* w_D, T* sum_ND, T* y_ND, W* inverse_N,
                   int64_t rows, int64_t width, W epsilon);
  /// grad_x = grad_sum (if not null) + the gradient through the norm. Adds the rows' contribution
  /// to the weight's gradient to grad_w.
  void (*rms_norm_backward)(const T* grad_y_ND, const T* grad_sum_ND, const T* x_ND,
                            const W* inverse_N, const T* w_D, T* grad_x_ND, W* grad_w_D,
                            int64_t rows, int64_t width);
  void (*swiglu)(const T* gate, const T* up, T* y, int64_t size);
  void (*swiglu_backward)(const T* grad_y, const T* gate, const T* up, T* grad_gate, T* grad_up,
                          int64_t size);
  /// Rotates each of a token's heads by the angles of one position; `sign` -1 rotates back.
  void (*rope)(const T* x_NH, const T* cos_F, const T* sin_F, T* y_NH, int64_t heads, int64_t half,
               W sign);
  /// Returns the NLL of `label` in a row. Unless `scratch_V` is null, overwrites the logits with
  /// their gradient, scale * (softmax - one_hot(label)).
  W (*cross_entropy)(T* logits_V, int64_t vocab_size, int64_t label, W scale, W* scratch_V);
  /// sum = scale * update, or sum += scale * update.
  void (*accumulate)(const T* update, W* sum, int64_t size, W scale, bool overwrite);

  // `multiply`, `attention` and `attention_backward` are null where the registers cannot hold the
  // tiles of attention: ATen's attention is faster there.
  Multiply<W> multiply;
  /// Causal: position t attends to positions starts[t] ... t. Writes the scores' log-sum-exp, which
  /// the backward pass needs, to log_sums. `multiply` is the field above.
  void (*attention)(const T* q, const T* k, const T* v, T* out, W* log_sums,
                    const AttentionShape& shape, W scale, W* scratch, Multiply<W> multiply);
  void (*attention_backward)(const AttentionTensors<T>& tensors, const AttentionShape& shape,
                             W scale, W* scratch, Multiply<W> multiply);
};

/// The sets of kernels that this processor can run, from the portable set to the fastest set.
template <class T>
const std::vector<BlockKernels<T>>& all_block_kernels();

/// The fastest set.
template <class T>
const BlockKernels<T>& block_kernels() {
  static const BlockKernels<T>& fastest = all_block_kernels<T>().back();
  return fastest;
}

}  // namespace xffl::kernels
