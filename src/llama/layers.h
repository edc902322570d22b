// The layers of a block. Each is differentiable in its activations and adds its parameters'
// gradients to their Weights when its backward runs: at most once per forward, in the thread that
// calls backward.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "lora.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {

struct Linear {
  Weight* weight = nullptr;
  Weight* bias = nullptr;  // null when there is none
  Lora lora{};
};

/// Gives a layer's input once more, with the same bits: then it is not kept for the backward.
using InputAgain = std::function<at::Tensor()>;

/// x W_i^T + b_i, and the adapter's part, for several layers that read the same x: its gradient is
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
