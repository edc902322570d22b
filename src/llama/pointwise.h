// What a block computes element by element, forward and backward, without autograd: layers.cc
// makes differentiable functions of it. Any device and floating dtype; the common dtypes take
// one pass over memory on CPUs (kernels/cpu/block.h) and NVIDIA GPUs (gpu_kernels.h), the others
// are written in ATen.
#pragma once

#include <torch/types.h>

#include <optional>
#include <utility>

#include "xffl/llama/rope.h"

namespace xffl::llama {

/// Float32, or float64 for a float64 model (tests): what norms and softmax are computed in.
at::ScalarType accumulation_type(at::ScalarType type);

struct Normed {
  at::Tensor sum_BTD;      // x + delta; x itself without delta
  at::Tensor normed_BTD;   // w sum / rms(sum), rounded before w multiplies, as Hugging Face does
  at::Tensor inverse_BT1;  // 1 / rms(sum)
};
/// `delta_BTD` undefined: no addition.
Normed rms_norm_forward(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
                        double epsilon);

struct NormGradients {
  at::Tensor grad_x_BTD;  // with grad_sum_BTD, if that is defined
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

/// (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for the halves of the last dimension; `sign` -1
/// rotates back. A table of B T rows has angles of its own for each sequence.
at::Tensor rotate(const at::Tensor& x_BTNH, const RopeTable& table, double sign);

/// sum = scale * update, or sum += scale * update: float32 (float64) sums of updates in any dtype.
void accumulate(at::Tensor sum, const at::Tensor& update, double scale, bool overwrite);

}  // namespace xffl::llama
