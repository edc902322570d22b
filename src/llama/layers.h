// The layers of a block. A layer is differentiable in its activations. Its backward adds the
// gradients of its parameters to their Weights: at most once per forward, in the thread that calls
// backward.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "lora.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

struct Linear {
  Weight* weight = nullptr;
  Weight* bias = nullptr;  // null: none
  Lora lora{};
};

/// Recomputes a layer's input, with the same bits: the layer then keeps no input for its backward.
using InputAgain = std::function<at::Tensor()>;

/// x W_i^T + b_i, plus the adapter's part, for several layers with the same x: the gradient of x is
/// summed in one buffer.
std::vector<at::Tensor> apply_linears(const at::Tensor& x_BTD, const std::vector<Linear>& linears,
                                      const InputAgain& again = {});
at::Tensor apply_linear(const at::Tensor& x_BTD, const Linear& linear,
                        const InputAgain& again = {});

/// Root mean square norm in float32, rounded to the dtype of x before the weight multiplies (as
/// Hugging Face does).
at::Tensor rms_norm(const at::Tensor& x_BTD, Weight& weight, double epsilon);

struct SumAndNorm {
  at::Tensor sum_BTD;
  at::Tensor normed_BTD;
};
/// x + delta, and its rms_norm.
SumAndNorm add_rms_norm(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, Weight& weight,
                        double epsilon);

/// silu(gate) * up
at::Tensor swiglu(const at::Tensor& gate_BTI, const at::Tensor& up_BTI);

}  // namespace xffl::llama
