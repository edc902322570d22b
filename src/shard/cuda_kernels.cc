#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <type_traits>

#include "gpu_kernels.h"
#include "xffl/kernels/cuda/optimizer.h"

namespace xffl::shard::gpu {
namespace {

using kernels::Bf16;

bool is_on_gpu(const at::Tensor& x) { return x.is_cuda() && x.is_contiguous(); }
bool is_plain(const at::Tensor& x) { return is_on_gpu(x) && x.scalar_type() == at::kFloat; }

kernels::Launch current() {
  return {at::cuda::getCurrentCUDAStream().stream(),
          at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}

float* floats(const at::Tensor& x) { return x.mutable_data_ptr<float>(); }

template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

// Calls `body` with a value of the kernels' type for float32 or bfloat16; false for other dtypes.
template <class Body>
bool with_stored(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) return body(float{});
  return x.scalar_type() == at::kBFloat16 && body(Bf16{});
}

// A unit's step on elements [begin, begin + count), which share their decay.
struct UnitStep {
  const UnitState& state;
  const at::Tensor &first_S, &second_S;
  int64_t begin, count;
  kernels::AdamwNumbers numbers;

  template <class T>
  T* from(const at::Tensor& x) const {
    return x.defined() ? data<T>(x) + begin : nullptr;
  }

  template <class G, class M>
  bool run() const {
    const at::Tensor &master_S = state.master_S, &copy_S = state.copy_S;
    const G* gradient = from<G>(state.gradient_S);
    M *first = from<M>(first_S), *second = from<M>(second_S);
    if (state.remainder_S.defined()) {
      kernels::adamw_with_remainder<G, M>(current(), from<Bf16>(master_S),
                                          from<uint16_t>(state.remainder_S), gradient, first,
                                          second, count, numbers);
      return true;
    }
    if (master_S.scalar_type() == at::kBFloat16) {
      kernels::adamw_on_weights<G, M>(current(), from<Bf16>(master_S), gradient, first, second,
                                      count, numbers);
      return true;
    }
    if (copy_S.defined() && copy_S.scalar_type() == at::kBFloat16) {
      kernels::adamw<Bf16, G, M>(current(), from<float>(master_S), gradient, first, second,
                                 from<Bf16>(copy_S), count, numbers);
      return true;
    }
    if constexpr (std::is_same_v<G, float> && std::is_same_v<M, float>) {
      if (copy_S.defined() && copy_S.scalar_type() == at::kHalf)
        kernels::adamw<kernels::Half, G, M>(current(), from<float>(master_S), gradient, first,
                                            second, from<kernels::Half>(copy_S), count, numbers);
      else
        kernels::adamw<float, G, M>(current(), from<float>(master_S), gradient, first, second,
                                    from<float>(copy_S), count, numbers);
      return true;
    }
    return false;
  }

  bool run_as_stored() const {
    return with_stored(state.gradient_S, [&]<class G>(G) {
      return with_stored(first_S, [&]<class M>(M) { return run<G, M>(); });
    });
  }
};

}  // namespace

bool adamw(const UnitState& state, const at::Tensor& first_S, const at::Tensor& second_S,
           const AdamwOptions& options, double learning_rate, double gradient_factor,
           int64_t step) {
  // refresh_compute() updates a copy on another device.
  if (!is_on_gpu(state.master_S) || !is_on_gpu(state.gradient_S) || !is_on_gpu(first_S) ||
      !is_on_gpu(second_S) || (state.copy_S.defined() && !is_on_gpu(state.copy_S)))
    return false;
  const c10::cuda::CUDAGuard guard(state.master_S.device());
  kernels::AdamwNumbers numbers{
      learning_rate,        options.beta1,   options.beta2, options.epsilon,
      options.weight_decay, gradient_factor, step};
  const int64_t decayed = state.num_decayed, all = state.master_S.numel();
  const bool done = UnitStep{state, first_S, second_S, 0, decayed, numbers}.run_as_stored();
  numbers.weight_decay = 0;
  return done &&
         UnitStep{state, first_S, second_S, decayed, all - decayed, numbers}.run_as_stored();
}

bool split_masters(const at::Tensor& master, const at::Tensor& weight,
                   const at::Tensor& remainder) {
  if (!is_plain(master) || !is_on_gpu(weight) || !is_on_gpu(remainder)) return false;
  const c10::cuda::CUDAGuard guard(master.device());
  kernels::split_masters(current(), floats(master), data<Bf16>(weight), data<uint16_t>(remainder),
                         master.numel());
  return true;
}

bool join_masters(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& master) {
  if (!is_plain(master) || !is_on_gpu(weight) || !is_on_gpu(remainder)) return false;
  const c10::cuda::CUDAGuard guard(master.device());
  kernels::join_masters(current(), data<Bf16>(weight), data<uint16_t>(remainder), floats(master),
                        master.numel());
  return true;
}

bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE) {
  if (!is_on_gpu(rows_CE) || !sums_C.is_cuda() || sums_C.scalar_type() != at::kDouble) return false;
  const c10::cuda::CUDAGuard guard(rows_CE.device());
  return with_stored(rows_CE, [&]<class T>(T) {
    kernels::square_sums<T>(current(), data<T>(rows_CE), sums_C.mutable_data_ptr<double>(),
                            rows_CE.numel(), rows_CE.size(1));
    return true;
  });
}

bool scale(const at::Tensor& values_S, double factor) {
  if (!is_plain(values_S)) return false;
  const c10::cuda::CUDAGuard guard(values_S.device());
  kernels::scale(current(), floats(values_S), values_S.numel(), static_cast<float>(factor));
  return true;
}

}  // namespace xffl::shard::gpu
