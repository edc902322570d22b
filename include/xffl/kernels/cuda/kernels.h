// The CUDA kernels: the parts of a transformer block and of its loss for which ATen has no fused
// kernel, and optimizers over flat buffers. No CUDA header and no torch header is needed.
//
// T is float, Bf16 or Half; the kernels compute sums and functions in float32. Buffers are on the
// device, contiguous, of any alignment (16 bytes are fastest). Buffers do not overlap unless a
// comment allows it. The order of a sum depends on shapes only and uses no atomics: each run gives
// the same bits. llama/pointwise.h defines the functions, and its ATen versions are the reference
// of the tests. A failed launch throws kFailed; an error inside a kernel shows at the stream's next
// synchronisation. cmake/torch.cmake names the architectures.
#pragma once

#include <cstdint>

#include "xffl/kernels/types.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace xffl::kernels {

/// The stream and the GPU of a launch. A launch returns at once, so its buffers must live until the
/// stream has run the kernel.
struct Launch {
  CUstream_st* stream = nullptr;
  int num_multiprocessors = 1;
};

/// sum = x + delta where `delta` is not null; y = w sum / rms(sum); inverse_N = 1 / rms(sum).
/// `delta` may be x, or the memory of sum.
template <class T>
void rms_norm(const Launch& on, const T* x_ND, const T* delta_ND, const T* w_D, T* sum_ND, T* y_ND,
              float* inverse_N, int64_t rows, int64_t width, float epsilon);

/// The rows of `width` floats of scratch memory that rms_norm_backward needs.
int64_t rms_norm_scratch_rows(int64_t rows);
/// grad_x = grad_sum (if not null) + the gradient through the norm. Overwrites grad_w_D.
template <class T>
void rms_norm_backward(const Launch& on, const T* grad_y_ND, const T* grad_sum_ND, const T* x_ND,
                       const float* inverse_N, const T* w_D, T* grad_x_ND, float* grad_w_D,
                       float* scratch, int64_t rows, int64_t width);

/// y = silu(gate) up; the gradients may overwrite the inputs.
template <class T>
void swiglu(const Launch& on, const T* gate, const T* up, T* y, int64_t size);
template <class T>
void swiglu_backward(const Launch& on, const T* grad_y, const T* gate, const T* up, T* grad_gate,
                     T* grad_up, int64_t size);

/// Strides are in elements; a head's elements are contiguous. Token i uses row i % angles of the
/// cosines and sines. The table has one row for each position, or one for each token.
struct HeadsShape {
  int64_t batch = 0, positions = 0, heads = 0, half = 0;
  int64_t batch_stride = 0, position_stride = 0, head_stride = 0;
  int64_t angles = 0;
};
/// Rotates the pairs (i, i + half) of each head by its token's angles; `sign` -1 rotates back. y is
/// contiguous; y may be x where x is contiguous.
template <class T>
void rope(const Launch& on, const T* x_BTNH, const HeadsShape& shape, const T* cos_AF,
          const T* sin_AF, T* y_BTNH, float sign);

/// The NLL of each row's label, 0 for the label `ignore`. With `into_gradient` the logits become
/// scale * (softmax - one_hot(label)), or zeros for the label `ignore`. Labels are in [0,
/// vocab_size) or `ignore`.
template <class T>
void cross_entropy(const Launch& on, T* logits_RV, const int64_t* labels_R, float* nll_R,
                   int64_t rows, int64_t vocab_size, int64_t ignore, float scale,
                   bool into_gradient);

/// sum = scale * update, or sum += scale * update.
template <class T>
void accumulate(const Launch& on, const T* update, float* sum, int64_t size, float scale,
                bool overwrite);

struct AdamwNumbers {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  double gradient_factor = 1;  // multiplies gradients first, for unscaling and clipping
  int64_t step = 1;            // 1 in the first step
  bool coupled = false;        // Adam: weight decay is a part of the gradient
};

struct SgdNumbers {
  double learning_rate = 0, momentum = 0, weight_decay = 0;
  double gradient_factor = 1;  // multiplies gradients first, for unscaling and clipping
  bool nesterov = false;
};

/// A float32 master. `copy`, if not null, receives the master rounded to T (to nearest, ties to
/// even) in the same pass as the step.
template <class T>
struct WideMaster {
  float* master;
  T* copy;
};
/// A master in two parts: a bfloat16 weight and the 16 bits that rounding removed. A float32 master
/// beside a weight would take 2 more bytes per parameter.
struct SplitMaster {
  Bf16* weight;
  uint16_t* remainder;
};

/// One step of torch.optim.AdamW, or with `coupled` of torch.optim.Adam. Master is one of three
/// types. WideMaster<T> and SplitMaster give the same bits. Bf16* is a weight alone: the kernel
/// rounds the weight once, to nearest, ties to even, as torch's fused AdamW rounds bfloat16
/// parameters. The rounding loses a change below half a unit in the last place. Gradients are
/// stored as G and moments as M: float, or (unless T is float or Half) Bf16. A step computes in
/// float32 and uses the new moments before they are rounded to M.
template <class Master, class G, class M>
void adamw(const Launch& on, Master master, const G* gradient, M* first_moment, M* second_moment,
           int64_t size, const AdamwNumbers& numbers);

/// One step of torch.optim.SGD, with the types of adamw(). `velocity`, the momentum's buffer,
/// starts at zero; it is null without momentum.
template <class Master, class G, class M>
void sgd(const Launch& on, Master master, const G* gradient, M* velocity, int64_t size,
         const SgdNumbers& numbers);

/// Exact for every number and infinity; a NaN stays a NaN in `weight` and in the master. The weight
/// is the master rounded to nearest, ties away from zero. Ties to even would need a remainder of 17
/// bits.
void split_masters(const Launch& on, const float* master, Bf16* weight, uint16_t* remainder,
                   int64_t size);
void join_masters(const Launch& on, const Bf16* weight, const uint16_t* remainder, float* master,
                  int64_t size);

/// The sum of the squares of each piece of `piece` elements, in float64; `piece` divides `size`.
template <class T>
void square_sums(const Launch& on, const T* x, double* sums, int64_t size, int64_t piece);

}  // namespace xffl::kernels
