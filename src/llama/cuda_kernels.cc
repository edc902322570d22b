#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <initializer_list>

#include "gpu_kernels.h"
#include "xffl/kernels/cuda/block.h"
#include "xffl/llama/head_loss.h"

namespace xffl::llama::gpu {
namespace {

template <class T>
const T* input(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}
template <class T>
T* output(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

at::Tensor contiguous(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

// Calls `body` with the current stream of x's device and a value of the kernels' type for its
// dtype.
template <class Body>
bool on_cuda(const at::Tensor& x, const Body& body) {
  if (!x.is_cuda()) return false;
  const c10::cuda::CUDAGuard guard(x.device());
  const kernels::Launch launch{at::cuda::getCurrentCUDAStream().stream(),
                               at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
  switch (x.scalar_type()) {
    case at::kFloat:
      body(launch, float{});
      return true;
    case at::kBFloat16:
      body(launch, kernels::Bf16{});
      return true;
    case at::kHalf:
      body(launch, kernels::Half{});
      return true;
    default:
      return false;
  }
}

// A kernel reads all its tensors in one dtype; ATen handles mixtures.
bool are_alike(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return !each.defined() ||
           (each.scalar_type() == first.scalar_type() && each.device() == first.device());
  });
}

at::Tensor empty_floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

}  // namespace

bool rms_norm_forward(Normed& result, const at::Tensor& x_BTD, const at::Tensor& delta_BTD,
                      const at::Tensor& w_D, double epsilon) {
  return are_alike({x_BTD, delta_BTD, w_D}) &&
         on_cuda(x_BTD, [&]<class T>(const kernels::Launch& on, T) {
           const at::Tensor x = x_BTD.contiguous(), delta = contiguous(delta_BTD);
           const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
           result.sum_BTD = delta.defined() ? at::empty_like(x) : x_BTD;
           result.normed_BTD = at::empty_like(x);
           std::vector<int64_t> shape = x.sizes().vec();
           shape.back() = 1;
           result.inverse_BT1 = empty_floats(shape, x);
           kernels::rms_norm<T>(on, input<T>(x), input<T>(delta), input<T>(w_D.contiguous()),
                                delta.defined() ? output<T>(result.sum_BTD) : nullptr,
                                output<T>(result.normed_BTD), output<float>(result.inverse_BT1),
                                rows, width, static_cast<float>(epsilon));
         });
}

bool rms_norm_backward(NormGradients& result, const at::Tensor& grad_normed_BTD,
                       const at::Tensor& grad_sum_BTD, const at::Tensor& sum_BTD,
                       const at::Tensor& inverse_BT1, const at::Tensor& w_D) {
  return are_alike({sum_BTD, grad_normed_BTD, grad_sum_BTD, w_D}) &&
         on_cuda(sum_BTD, [&]<class T>(const kernels::Launch& on, T) {
           const at::Tensor x = sum_BTD.contiguous(), grad_y = grad_normed_BTD.contiguous();
           const at::Tensor grad_sum = contiguous(grad_sum_BTD);
           const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
           result.grad_x_BTD = at::empty_like(x);
           result.grad_w_D = empty_floats({width}, x);
           const at::Tensor scratch =
               empty_floats({kernels::rms_norm_scratch_rows(rows), width}, x);
           kernels::rms_norm_backward<T>(on, input<T>(grad_y), input<T>(grad_sum), input<T>(x),
                                         input<float>(inverse_BT1.contiguous()),
                                         input<T>(w_D.contiguous()), output<T>(result.grad_x_BTD),
                                         output<float>(result.grad_w_D), output<float>(scratch),
                                         rows, width);
         });
}

bool swiglu_forward(at::Tensor& result, const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return are_alike({gate_BTI, up_BTI}) &&
         on_cuda(gate_BTI, [&]<class T>(const kernels::Launch& on, T) {
           const at::Tensor gate = gate_BTI.contiguous(), up = up_BTI.contiguous();
           result = at::empty_like(gate);
           kernels::swiglu<T>(on, input<T>(gate), input<T>(up), output<T>(result), gate.numel());
         });
}

bool swiglu_backward(std::pair<at::Tensor, at::Tensor>& result, const at::Tensor& grad_BTI,
                     const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return are_alike({gate_BTI, grad_BTI, up_BTI}) &&
         on_cuda(gate_BTI, [&]<class T>(const kernels::Launch& on, T) {
           const at::Tensor grad = grad_BTI.contiguous();
           const at::Tensor gate = gate_BTI.contiguous(), up = up_BTI.contiguous();
           result = {at::empty_like(gate), at::empty_like(gate)};
           kernels::swiglu_backward<T>(on, input<T>(grad), input<T>(gate), input<T>(up),
                                       output<T>(result.first), output<T>(result.second),
                                       gate.numel());
         });
}

bool rotate(at::Tensor& result, const at::Tensor& x_BTNH, const RopeTable& table, double sign) {
  if (!are_alike({x_BTNH, table.cos_TF, table.sin_TF})) return false;
  return on_cuda(x_BTNH, [&]<class T>(const kernels::Launch& on, T) {
    const at::Tensor x = x_BTNH.stride(3) == 1 ? x_BTNH : x_BTNH.contiguous();
    result = at::empty(x.sizes(), x.options());
    const at::Tensor cos = table.cos_TF.contiguous(), sin = table.sin_TF.contiguous();
    const kernels::HeadsShape shape{x.size(0),   x.size(1),   x.size(2),   x.size(3) / 2,
                                    x.stride(0), x.stride(1), x.stride(2), cos.size(0)};
    kernels::rope<T>(on, input<T>(x), shape, input<T>(cos), input<T>(sin), output<T>(result),
                     static_cast<float>(sign));
  });
}

bool accumulate(const at::Tensor& sum, const at::Tensor& update, double scale, bool overwrite) {
  const bool fits = sum.is_cuda() && sum.is_contiguous() && sum.scalar_type() == at::kFloat;
  return fits && on_cuda(update, [&]<class T>(const kernels::Launch& on, T) {
           kernels::accumulate<T>(on, input<T>(update.contiguous()), output<float>(sum),
                                  sum.numel(), static_cast<float>(scale), overwrite);
         });
}

bool cross_entropy(const at::Tensor& logits_RV, const at::Tensor& labels_R, const at::Tensor& nll_R,
                   bool into_gradient, double scale) {
  if (!logits_RV.is_contiguous() || !nll_R.is_contiguous()) return false;
  return on_cuda(logits_RV, [&]<class T>(const kernels::Launch& on, T) {
    kernels::cross_entropy<T>(on, output<T>(logits_RV), input<int64_t>(labels_R.contiguous()),
                              output<float>(nll_R), logits_RV.size(0), logits_RV.size(1),
                              kIgnoreLabel, static_cast<float>(scale), into_gradient);
  });
}

bool add_product(at::Tensor& sum_MK, const at::Tensor& a_NM, const at::Tensor& b_NK, double scale,
                 bool overwrite) {
  const bool narrow = a_NM.scalar_type() == at::kBFloat16 || a_NM.scalar_type() == at::kHalf;
  if (!a_NM.is_cuda() || !narrow || sum_MK.scalar_type() != at::kFloat) return false;
  // With beta 0 the old content is not read, even if it is NaN.
  at::addmm_out(sum_MK, sum_MK, a_NM.t(), b_NK, at::kFloat, overwrite ? 0 : 1, scale);
  return true;
}

}  // namespace xffl::llama::gpu
