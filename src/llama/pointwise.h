// A block's element-wise functions, forward and backward, without autograd; layers.cc makes them
// differentiable. Any device and floating dtype. Common dtypes take one pass over memory on CPUs
// (kernels/cpu/block.h) and NVIDIA GPUs (kernels/cuda/gpu.h); other dtypes use ATen.
#pragma once

#include <torch/types.h>

#include <optional>
#include <utility>

#include "xffl/llama/rope.h"

namespace xffl::llama {

/// The dtype of norms and softmax: float32, or float64 for a float64 model (tests).
at::ScalarType accumulation_type(at::ScalarType type);

struct Normed {
  at::Tensor sum_BTD;      // x + delta; x itself without delta
  at::Tensor normed_BTD;   // w sum / rms(sum), rounded before w multiplies, as Hugging Face does
  at::Tensor inverse_BT1;  // 1 / rms(sum)
};
/// An undefined `delta_BTD` means no addition.
Normed rms_norm_forward(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
                        double epsilon);

struct NormGradients {
  at::Tensor grad_x_BTD;  // grad_sum_BTD included, if it is defined
  at::Tensor grad_w_D;    // in the accumulation type
};
NormGradients rms_norm_backward(const at::Tensor& grad_normed_BTD, const at::Tensor& grad_sum_BTD,
                                const at::Tensor& sum_BTD, const at::Tensor& inverse_BT1,
                                const at::Tensor& w_D);

/// silu(gate) * up
at::Tensor swiglu_forward(const at::Tensor& gate_BTI, const at::Tensor& up_BTI);
/// The gradients of gate and up.
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_BTI,
                                                  const at::Tensor& gate_BTI,
                                                  const at::Tensor& up_BTI);

/// Maps the halves (x1, x2) of the last dimension to (x1 cos - x2 sin, x2 cos + x1 sin); `sign` -1
/// rotates back. A table of B T rows has separate angles for each sequence.
at::Tensor rotate(const at::Tensor& x_BTNH, const RopeTable& table, double sign);

/// sum = scale * update, or sum += scale * update. The sum is float32 or float64, and the update
/// has any dtype.
void accumulate(at::Tensor sum, const at::Tensor& update, double scale, bool overwrite);

}  // namespace xffl::llama
