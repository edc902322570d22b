#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "gpu_kernels.h"
#include "xffl/kernels/optimizer.h"

namespace xffl::shard::gpu {
namespace {

bool is_plain(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

kernels::Launch current() {
  return {at::cuda::getCurrentCUDAStream().stream(),
          at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}

float* floats(const at::Tensor& x) { return x.mutable_data_ptr<float>(); }

template <class T>
void step_range(const UnitState& state, const at::Tensor& first_S, const at::Tensor& second_S,
                const kernels::AdamwNumbers& numbers, int64_t begin, int64_t count) {
  T* copy = state.copy_S.defined() ? static_cast<T*>(state.copy_S.mutable_data_ptr()) : nullptr;
  kernels::adamw<T>(current(), floats(state.master_S) + begin, floats(state.gradient_S) + begin,
                    floats(first_S) + begin, floats(second_S) + begin,
                    copy == nullptr ? nullptr : copy + begin, count, numbers);
}

}  // namespace

bool adamw(const UnitState& state, const at::Tensor& first_S, const at::Tensor& second_S,
           const AdamwOptions& options, double learning_rate, double gradient_factor,
           int64_t step) {
  const bool has_copy = state.copy_S.defined();
  if (!is_plain(state.master_S) || !is_plain(state.gradient_S) || !is_plain(first_S) ||
      !is_plain(second_S) || (has_copy && !state.copy_S.is_cuda()))
    return false;
  const c10::cuda::CUDAGuard guard(state.master_S.device());
  kernels::AdamwNumbers numbers{
      learning_rate,        options.beta1,   options.beta2, options.epsilon,
      options.weight_decay, gradient_factor, step};
  const at::ScalarType copy_type = has_copy ? state.copy_S.scalar_type() : at::kFloat;
  const auto step_one = [&](int64_t begin, int64_t count) {
    if (copy_type == at::kBFloat16)
      step_range<kernels::Bf16>(state, first_S, second_S, numbers, begin, count);
    else if (copy_type == at::kHalf)
      step_range<kernels::Half>(state, first_S, second_S, numbers, begin, count);
    else
      step_range<float>(state, first_S, second_S, numbers, begin, count);
  };
  step_one(0, state.num_decayed);
  numbers.weight_decay = 0;
  step_one(state.num_decayed, state.master_S.numel() - state.num_decayed);
  return true;
}

bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE) {
  if (!is_plain(rows_CE) || !sums_C.is_cuda() || sums_C.scalar_type() != at::kDouble) return false;
  const c10::cuda::CUDAGuard guard(rows_CE.device());
  kernels::square_sums(current(), floats(rows_CE), sums_C.mutable_data_ptr<double>(),
                       rows_CE.numel(), rows_CE.size(1));
  return true;
}

bool scale(const at::Tensor& values_S, double factor) {
  if (!is_plain(values_S)) return false;
  const c10::cuda::CUDAGuard guard(values_S.device());
  kernels::scale(current(), floats(values_S), values_S.numel(), static_cast<float>(factor));
  return true;
}

}  // namespace xffl::shard::gpu
