// N rows of D or I elements. Threads split the work by rows or by runs of elements. Sums over rows
// run in blocks of a fixed number of rows, so that the sums do not depend on the number of threads.
#include "pointwise.h"

#include <ATen/Parallel.h>

#include "on_cpu.h"
#include "xffl/kernels/cuda/gpu.h"

namespace xffl::llama {
namespace {

constexpr int64_t kBlockRows = 64;
constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

int64_t num_rows(const at::Tensor& x_BTD) { return x_BTD.numel() / x_BTD.size(-1); }
int64_t grain_rows(const at::Tensor& x_BTD) {
  return std::max(kGrain / x_BTD.size(-1), int64_t{1});
}

Normed norm_by_aten(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
                    double epsilon) {
  const at::Tensor sum_BTD = delta_BTD.defined() ? x_BTD + delta_BTD : x_BTD;
  const at::Tensor wide_BTD = sum_BTD.to(accumulation_type(x_BTD.scalar_type()));
  const at::Tensor inverse_BT1 = wide_BTD.square().mean(-1, true).add_(epsilon).rsqrt_();
  const at::Tensor normed_BTD = at::mul(wide_BTD, inverse_BT1).to(x_BTD.scalar_type());
  return {sum_BTD, normed_BTD.mul_(w_D), inverse_BT1};
}

// Gradient of y = w n with n = x r, r = 1 / rms(x): dx = r (w dy - n mean(w dy n)).
NormGradients norm_backward_by_aten(const at::Tensor& grad_normed_BTD,
                                    const at::Tensor& grad_sum_BTD, const at::Tensor& sum_BTD,
                                    const at::Tensor& inverse_BT1, const at::Tensor& w_D) {
  const at::ScalarType wide = accumulation_type(sum_BTD.scalar_type());
  const at::Tensor grad_BTD = grad_normed_BTD.to(wide);
  const at::Tensor normed_BTD = at::mul(sum_BTD.to(wide), inverse_BT1);
  at::Tensor product_BTD = at::mul(grad_BTD, normed_BTD);
  const at::Tensor grad_w_D = product_BTD.reshape({-1, w_D.size(0)}).sum(0);
  product_BTD.mul_(w_D);
  const at::Tensor mean_BT1 = product_BTD.mean(-1, true);
  at::Tensor grad_x_BTD = at::mul(grad_BTD, w_D);
  grad_x_BTD.addcmul_(normed_BTD, mean_BT1, -1).mul_(inverse_BT1);
  if (grad_sum_BTD.defined()) grad_x_BTD.add_(grad_sum_BTD);
  return {grad_x_BTD.to(sum_BTD.scalar_type()), grad_w_D};
}

at::Tensor rotate_by_aten(const at::Tensor& x_BTNH, const RopeTable& table, double sign) {
  const int64_t half = x_BTNH.size(3) / 2;
  const at::Tensor cos = table.cos_TF.view({-1, x_BTNH.size(1), 1, half});
  const at::Tensor sin = table.sin_TF.view({-1, x_BTNH.size(1), 1, half});
  const at::Tensor x1 = x_BTNH.narrow(3, 0, half);
  const at::Tensor x2 = x_BTNH.narrow(3, half, half);
  at::Tensor result_BTNH = at::empty(x_BTNH.sizes(), x_BTNH.options());
  at::Tensor y1 = result_BTNH.narrow(3, 0, half);
  at::Tensor y2 = result_BTNH.narrow(3, half, half);
  at::mul_out(y1, x1, cos);
  y1.addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos);
  y2.addcmul_(x1, sin, sign);
  return result_BTNH;
}

}  // namespace

at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

Normed rms_norm_forward(const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
                        double epsilon) {
  Normed result;
  if (kernels::gpu::rms_norm(result.sum_BTD, result.normed_BTD, result.inverse_BT1, x_BTD,
                             delta_BTD, w_D, epsilon))
    return result;
  const bool done = on_cpu(x_BTD, [&]<class T>(T) {
    const at::Tensor x = x_BTD.contiguous();
    const at::Tensor delta = delta_BTD.defined() ? delta_BTD.contiguous() : at::Tensor();
    result.sum_BTD = delta.defined() ? at::empty_like(x) : x_BTD;
    result.normed_BTD = at::empty_like(x);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = 1;
    result.inverse_BT1 = at::empty(shape, x.options().dtype(accumulation_type(x.scalar_type())));
    const int64_t width = x.size(-1);
    at::parallel_for(0, num_rows(x), grain_rows(x), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * width;
      const T* d = delta.defined() ? const_data<T>(delta) + at : nullptr;
      T* sum = delta.defined() ? mutable_data<T>(result.sum_BTD) + at : nullptr;
      kernels::block_kernels<T>().rms_norm(const_data<T>(x) + at, d, const_data<T>(w_D), sum,
                                           mutable_data<T>(result.normed_BTD) + at,
                                           mutable_data<Wide<T>>(result.inverse_BT1) + begin,
                                           end - begin, width, static_cast<Wide<T>>(epsilon));
    });
  });
  return done ? result : norm_by_aten(x_BTD, delta_BTD, w_D, epsilon);
}

NormGradients rms_norm_backward(const at::Tensor& grad_normed_BTD, const at::Tensor& grad_sum_BTD,
                                const at::Tensor& sum_BTD, const at::Tensor& inverse_BT1,
                                const at::Tensor& w_D) {
  NormGradients result;
  if (kernels::gpu::rms_norm_backward(result.grad_x_BTD, result.grad_w_D, grad_normed_BTD,
                                      grad_sum_BTD, sum_BTD, inverse_BT1, w_D))
    return result;
  const bool done = on_cpu(sum_BTD, [&]<class T>(T) {
    const at::Tensor x = sum_BTD.contiguous();
    const at::Tensor grad_y = grad_normed_BTD.contiguous();
    const at::Tensor grad_sum = grad_sum_BTD.defined() ? grad_sum_BTD.contiguous() : at::Tensor();
    const int64_t rows = num_rows(x);
    const int64_t width = x.size(-1);
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    at::Tensor grad_w_CD = at::zeros({blocks, width}, inverse_BT1.options());
    result.grad_x_BTD = at::empty_like(x);
    at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = block * kBlockRows;
        const int64_t at = row * width;
        const T* sum = grad_sum.defined() ? const_data<T>(grad_sum) + at : nullptr;
        kernels::block_kernels<T>().rms_norm_backward(
            const_data<T>(grad_y) + at, sum, const_data<T>(x) + at,
            const_data<Wide<T>>(inverse_BT1) + row, const_data<T>(w_D),
            mutable_data<T>(result.grad_x_BTD) + at,
            mutable_data<Wide<T>>(grad_w_CD) + block * width, std::min(kBlockRows, rows - row),
            width);
      }
    });
    result.grad_w_D = grad_w_CD.sum(0);
  });
  return done ? result
              : norm_backward_by_aten(grad_normed_BTD, grad_sum_BTD, sum_BTD, inverse_BT1, w_D);
}

at::Tensor swiglu_forward(const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  at::Tensor result;
  if (kernels::gpu::swiglu(result, gate_BTI, up_BTI)) return result;
  const bool done = on_cpu(gate_BTI, [&]<class T>(T) {
    const at::Tensor gate = gate_BTI.contiguous();
    const at::Tensor up = up_BTI.contiguous();
    result = at::empty_like(gate);
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::block_kernels<T>().swiglu(const_data<T>(gate) + begin, const_data<T>(up) + begin,
                                         mutable_data<T>(result) + begin, end - begin);
    });
  });
  return done ? result : at::silu(gate_BTI).mul_(up_BTI);
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_BTI,
                                                  const at::Tensor& gate_BTI,
                                                  const at::Tensor& up_BTI) {
  at::Tensor grad_gate, grad_up;
  if (kernels::gpu::swiglu_backward(grad_gate, grad_up, grad_BTI, gate_BTI, up_BTI))
    return {grad_gate, grad_up};
  const bool done = on_cpu(gate_BTI, [&]<class T>(T) {
    const at::Tensor grad = grad_BTI.contiguous();
    const at::Tensor gate = gate_BTI.contiguous();
    const at::Tensor up = up_BTI.contiguous();
    grad_gate = at::empty_like(gate);
    grad_up = at::empty_like(gate);
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      kernels::block_kernels<T>().swiglu_backward(
          const_data<T>(grad) + begin, const_data<T>(gate) + begin, const_data<T>(up) + begin,
          mutable_data<T>(grad_gate) + begin, mutable_data<T>(grad_up) + begin, end - begin);
    });
  });
  if (done) return {grad_gate, grad_up};
  return {at::silu_backward(at::mul(grad_BTI, up_BTI), gate_BTI),
          at::silu(gate_BTI).mul_(grad_BTI)};
}

at::Tensor rotate(const at::Tensor& x_BTNH, const RopeTable& table, double sign) {
  at::Tensor result;
  if (kernels::gpu::rope(result, x_BTNH, table.cos_TF, table.sin_TF, sign)) return result;
  const bool done = on_cpu(x_BTNH, [&]<class T>(T) {
    const at::Tensor x = x_BTNH.contiguous();
    const int64_t rows = x.size(0) * x.size(1), heads = x.size(2), half = x.size(3) / 2;
    const int64_t angles = table.cos_TF.size(0);
    result = at::empty_like(x);
    at::parallel_for(0, rows, std::max(kGrain / (heads * half), int64_t{1}),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t row = begin; row < end; ++row) {
                         const int64_t angle = row % angles * half;
                         const int64_t at = row * heads * half * 2;
                         kernels::block_kernels<T>().rope(
                             const_data<T>(x) + at, const_data<T>(table.cos_TF) + angle,
                             const_data<T>(table.sin_TF) + angle, mutable_data<T>(result) + at,
                             heads, half, static_cast<Wide<T>>(sign));
                       }
                     });
  });
  return done ? result : rotate_by_aten(x_BTNH, table, sign);
}

void accumulate(at::Tensor sum, const at::Tensor& update, double scale, bool overwrite) {
  if (kernels::gpu::accumulate(sum, update, scale, overwrite)) return;
  const bool fits = sum.is_contiguous() && update.is_contiguous() &&
                    sum.scalar_type() == accumulation_type(update.scalar_type());
  const bool done = fits && on_cpu(update, [&]<class T>(T) {
                      at::parallel_for(0, sum.numel(), kGrain, [&](int64_t begin, int64_t end) {
                        kernels::block_kernels<T>().accumulate(
                            const_data<T>(update) + begin, mutable_data<Wide<T>>(sum) + begin,
                            end - begin, static_cast<Wide<T>>(scale), overwrite);
                      });
                    });
  if (done) return;
  if (overwrite) {
    at::mul_out(sum, update, at::scalar_tensor(scale, sum.options()));
  } else {
    sum.add_(update, scale);
  }
}

}  // namespace xffl::llama
