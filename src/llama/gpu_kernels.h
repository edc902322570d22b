// From tensors to the kernels of kernels/cuda/: cuda_kernels.cc, or no_cuda_kernels.cc in a build
// for CPUs.
//
// A function returns false, and does nothing, for other devices, for float64, and in a build
// without CUDA. pointwise.h and head_loss.h define the results. Work goes to the current stream.
#pragma once

#include <torch/types.h>

#include <utility>

#include "pointwise.h"

namespace xffl::llama::gpu {

bool rms_norm_forward(Normed& result, const at::Tensor& x_BTD, const at::Tensor& delta_BTD,
                      const at::Tensor& w_D, double epsilon);
bool rms_norm_backward(NormGradients& result, const at::Tensor& grad_normed_BTD,
                       const at::Tensor& grad_sum_BTD, const at::Tensor& sum_BTD,
                       const at::Tensor& inverse_BT1, const at::Tensor& w_D);
bool swiglu_forward(at::Tensor& result, const at::Tensor& gate_BTI, const at::Tensor& up_BTI);
bool swiglu_backward(std::pair<at::Tensor, at::Tensor>& result, const at::Tensor& grad_BTI,
                     const at::Tensor& gate_BTI, const at::Tensor& up_BTI);
bool rotate(at::Tensor& result, const at::Tensor& x_BTNH, const RopeTable& table, double sign);
bool accumulate(const at::Tensor& sum, const at::Tensor& update, double scale, bool overwrite);
/// The rows' NLL; with `into_gradient` the logits become scale * (softmax - one_hot(label)).
bool cross_entropy(const at::Tensor& logits_RV, const at::Tensor& labels_R, const at::Tensor& nll_R,
                   bool into_gradient, double scale);
/// sum_MK = scale * a_NM^T b_NK, or sum_MK += the product, for 16-bit factors and a float32 sum:
/// never rounded.
bool add_product(at::Tensor& sum_MK, const at::Tensor& a_NM, const at::Tensor& b_NK, double scale,
                 bool overwrite);

}  // namespace xffl::llama::gpu
