// AdamW, Adam and SGD over flat buffers in one pass over memory, and masters in two parts. A buffer
// stores float32 or bfloat16.
#pragma once

#include <cstdint>

namespace xffl::kernels {

/// The factors of step t of AdamW, or of Adam.
struct AdamwFactors {
  float gradient = 1;         // multiplies the gradient
  float first = 0;            // 1 - beta1
  float second = 0;           // 1 - beta2
  float kept_second = 0;      // beta2
  float decay = 0;            // learning rate * weight decay
  float step = 0;             // learning rate / (1 - beta1^t)
  float root_correction = 1;  // sqrt(1 - beta2^t)
  float epsilon = 0;
  float coupled_decay = 0;  // Adam's weight decay: added to the gradient, times the weight
};

/// The factors of a step of SGD: b = momentum b + g, and the step is gradient_share g +
/// buffer_share b. Without a buffer b = g.
struct SgdFactors {
  float gradient = 1;  // multiplies the gradient
  float decay = 0;     // weight decay: added to the gradient, times the weight
  float momentum = 0;
  float gradient_share = 0, buffer_share = 1;  // with Nesterov's momentum 1 and `momentum`
  float step = 0;                              // learning rate
};

/// A buffer of float32 or of bfloat16's bits: one of the two pointers is null.
struct Stored {
  float* wide = nullptr;
  uint16_t* bf16 = nullptr;
};

/// A step's buffers. `copy`, if not null, is a bfloat16 copy of `master.wide`. `master.bf16` is a
/// bfloat16 weight. With `remainder` (see split_masters_on_cpu) the weight and the remainder form a
/// float32 master; a null `remainder` means that the weight is the whole master.
struct OptimizerBuffers {
  Stored master;
  uint16_t* copy = nullptr;
  uint16_t* remainder = nullptr;
  Stored gradient, first, second;
};

/// Updates elements [begin, end). The step computes in float32 and gives the same bits for every
/// storage of the masters. The update uses the new moments before they are rounded.
void adamw_on_cpu(const OptimizerBuffers& buffers, int64_t begin, int64_t end,
                  const AdamwFactors& factors);
/// As adamw_on_cpu(). `first` is the momentum's buffer, with two null pointers if there is no
/// momentum; the function ignores `second`.
void sgd_on_cpu(const OptimizerBuffers& buffers, int64_t begin, int64_t end,
                const SgdFactors& factors);

/// split_masters() and join_masters() of kernels/cuda/optimizer.h, on a CPU.
void split_masters_on_cpu(const float* master, uint16_t* weight, uint16_t* remainder, int64_t size);
void join_masters_on_cpu(const uint16_t* weight, const uint16_t* remainder, float* master,
                         int64_t size);

/// The sum of the squares of `size` bfloat16 values.
double square_sum_on_cpu(const uint16_t* x, int64_t size);

}  // namespace xffl::kernels
