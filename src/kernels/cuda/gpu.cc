#include "xffl/kernels/cuda/gpu.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string>
#include <type_traits>

namespace xffl::kernels::gpu {
namespace {

Launch current() {
  return {at::cuda::getCurrentCUDAStream().stream(),
          at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}

template <class T>
const T* input(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}
template <class T>
T* output(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.mutable_data_ptr()) : nullptr;
}

at::Tensor contiguous(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

// Calls `body` with the current stream of x's device and a value of the kernels' type for x's
// dtype.
template <class Body>
bool on_cuda(const at::Tensor& x, const Body& body) {
  if (!x.is_cuda()) return false;
  const c10::cuda::CUDAGuard guard(x.device());
  const Launch launch = current();
  switch (x.scalar_type()) {
    case at::kFloat:
      body(launch, float{});
      return true;
    case at::kBFloat16:
      body(launch, Bf16{});
      return true;
    case at::kHalf:
      body(launch, Half{});
      return true;
    default:
      return false;
  }
}

// Kernels need tensors of one dtype; ATen handles mixtures.
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

bool is_on_gpu(const at::Tensor& x) { return x.is_cuda() && x.is_contiguous(); }
bool is_plain(const at::Tensor& x) { return is_on_gpu(x) && x.scalar_type() == at::kFloat; }

// Calls `body` with a value of the kernels' type for float32 or bfloat16; returns false for other
// dtypes.
template <class Body>
bool with_stored(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) return body(float{});
  return x.scalar_type() == at::kBFloat16 && body(Bf16{});
}

// The elements [begin, begin + count) of a step: weight decay applies to all of them or to none.
template <class Numbers>
struct StepRange {
  const OptimizerTensors& x;
  int64_t begin, count;
  Numbers numbers;

  template <class T>
  T* from(const at::Tensor& tensor) const {
    return tensor.defined() ? output<T>(tensor) + begin : nullptr;
  }

  template <class G, class M, class Master>
  bool step(Master master) const {
    if constexpr (std::is_same_v<Numbers, AdamwNumbers>)
      kernels::adamw<Master, G, M>(current(), master, from<G>(x.gradient_S), from<M>(x.first_S),
                                   from<M>(x.second_S), count, numbers);
    else
      kernels::sgd<Master, G, M>(current(), master, from<G>(x.gradient_S), from<M>(x.first_S),
                                 count, numbers);
    return true;
  }

  template <class G, class M>
  bool run() const {
    if (x.remainder_S.defined())
      return step<G, M>(SplitMaster{from<Bf16>(x.master_S), from<uint16_t>(x.remainder_S)});
    if (x.master_S.scalar_type() == at::kBFloat16) return step<G, M>(from<Bf16>(x.master_S));
    float* const master = from<float>(x.master_S);
    if (x.copy_S.defined() && x.copy_S.scalar_type() == at::kBFloat16)
      return step<G, M>(WideMaster<Bf16>{master, from<Bf16>(x.copy_S)});
    if constexpr (std::is_same_v<G, float> && std::is_same_v<M, float>) {
      if (x.copy_S.defined() && x.copy_S.scalar_type() == at::kHalf)
        return step<G, M>(WideMaster<Half>{master, from<Half>(x.copy_S)});
      return step<G, M>(WideMaster<float>{master, from<float>(x.copy_S)});
    }
    return false;
  }

  bool run_as_stored() const {
    return with_stored(x.gradient_S, [&]<class G>(G) {
      if (!x.first_S.defined()) return run<G, float>();
      return with_stored(x.first_S, [&]<class M>(M) { return run<G, M>(); });
    });
  }
};

}  // namespace

bool rms_norm(at::Tensor& sum_BTD, at::Tensor& normed_BTD, at::Tensor& inverse_BT1,
              const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
              double epsilon) {
  return are_alike({x_BTD, delta_BTD, w_D}) && on_cuda(x_BTD, [&]<class T>(const Launch& on, T) {
           const at::Tensor x = x_BTD.contiguous(), delta = contiguous(delta_BTD);
           const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
           sum_BTD = delta.defined() ? at::empty_like(x) : x_BTD;
           normed_BTD = at::empty_like(x);
           std::vector<int64_t> shape = x.sizes().vec();
           shape.back() = 1;
           inverse_BT1 = empty_floats(shape, x);
           kernels::rms_norm<T>(on, input<T>(x), input<T>(delta), input<T>(w_D.contiguous()),
                                delta.defined() ? output<T>(sum_BTD) : nullptr,
                                output<T>(normed_BTD), output<float>(inverse_BT1), rows, width,
                                static_cast<float>(epsilon));
         });
}

bool rms_norm_backward(at::Tensor& grad_x_BTD, at::Tensor& grad_w_D,
                       const at::Tensor& grad_normed_BTD, const at::Tensor& grad_sum_BTD,
                       const at::Tensor& sum_BTD, const at::Tensor& inverse_BT1,
                       const at::Tensor& w_D) {
  return are_alike({sum_BTD, grad_normed_BTD, grad_sum_BTD, w_D}) &&
         on_cuda(sum_BTD, [&]<class T>(const Launch& on, T) {
           const at::Tensor x = sum_BTD.contiguous(), grad_y = grad_normed_BTD.contiguous();
           const at::Tensor grad_sum = contiguous(grad_sum_BTD);
           const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
           grad_x_BTD = at::empty_like(x);
           grad_w_D = empty_floats({width}, x);
           const at::Tensor scratch =
               empty_floats({kernels::rms_norm_scratch_rows(rows), width}, x);
           kernels::rms_norm_backward<T>(
               on, input<T>(grad_y), input<T>(grad_sum), input<T>(x),
               input<float>(inverse_BT1.contiguous()), input<T>(w_D.contiguous()),
               output<T>(grad_x_BTD), output<float>(grad_w_D), output<float>(scratch), rows, width);
         });
}

bool swiglu(at::Tensor& result, const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return are_alike({gate_BTI, up_BTI}) && on_cuda(gate_BTI, [&]<class T>(const Launch& on, T) {
           const at::Tensor gate = gate_BTI.contiguous(), up = up_BTI.contiguous();
           result = at::empty_like(gate);
           kernels::swiglu<T>(on, input<T>(gate), input<T>(up), output<T>(result), gate.numel());
         });
}

bool swiglu_backward(at::Tensor& grad_gate_BTI, at::Tensor& grad_up_BTI, const at::Tensor& grad_BTI,
                     const at::Tensor& gate_BTI, const at::Tensor& up_BTI) {
  return are_alike({gate_BTI, grad_BTI, up_BTI}) &&
         on_cuda(gate_BTI, [&]<class T>(const Launch& on, T) {
           const at::Tensor grad = grad_BTI.contiguous();
           const at::Tensor gate = gate_BTI.contiguous(), up = up_BTI.contiguous();
           grad_gate_BTI = at::empty_like(gate);
           grad_up_BTI = at::empty_like(gate);
           kernels::swiglu_backward<T>(on, input<T>(grad), input<T>(gate), input<T>(up),
                                       output<T>(grad_gate_BTI), output<T>(grad_up_BTI),
                                       gate.numel());
         });
}

bool rope(at::Tensor& result, const at::Tensor& x_BTNH, const at::Tensor& cos_AF,
          const at::Tensor& sin_AF, double sign) {
  if (!are_alike({x_BTNH, cos_AF, sin_AF})) return false;
  return on_cuda(x_BTNH, [&]<class T>(const Launch& on, T) {
    const at::Tensor x = x_BTNH.stride(3) == 1 ? x_BTNH : x_BTNH.contiguous();
    result = at::empty(x.sizes(), x.options());
    const at::Tensor cos = cos_AF.contiguous(), sin = sin_AF.contiguous();
    const kernels::HeadsShape shape{x.size(0),   x.size(1),   x.size(2),   x.size(3) / 2,
                                    x.stride(0), x.stride(1), x.stride(2), cos.size(0)};
    kernels::rope<T>(on, input<T>(x), shape, input<T>(cos), input<T>(sin), output<T>(result),
                     static_cast<float>(sign));
  });
}

bool accumulate(const at::Tensor& sum, const at::Tensor& update, double scale, bool overwrite) {
  const bool fits = sum.is_cuda() && sum.is_contiguous() && sum.scalar_type() == at::kFloat;
  return fits && on_cuda(update, [&]<class T>(const Launch& on, T) {
           kernels::accumulate<T>(on, input<T>(update.contiguous()), output<float>(sum),
                                  sum.numel(), static_cast<float>(scale), overwrite);
         });
}

bool cross_entropy(const at::Tensor& logits_RV, const at::Tensor& labels_R, const at::Tensor& nll_R,
                   int64_t ignore, bool into_gradient, double scale) {
  if (!logits_RV.is_contiguous() || !nll_R.is_contiguous()) return false;
  return on_cuda(logits_RV, [&]<class T>(const Launch& on, T) {
    kernels::cross_entropy<T>(on, output<T>(logits_RV), input<int64_t>(labels_R.contiguous()),
                              output<float>(nll_R), logits_RV.size(0), logits_RV.size(1), ignore,
                              static_cast<float>(scale), into_gradient);
  });
}

bool add_product(at::Tensor& sum_MK, const at::Tensor& a_NM, const at::Tensor& b_NK, double scale,
                 bool overwrite) {
  const bool narrow = a_NM.scalar_type() == at::kBFloat16 || a_NM.scalar_type() == at::kHalf;
  if (!a_NM.is_cuda() || !narrow || sum_MK.scalar_type() != at::kFloat) return false;
  // With beta 0 addmm does not read the old content, even if the content is NaN.
  at::addmm_out(sum_MK, sum_MK, a_NM.t(), b_NK, at::kFloat, overwrite ? 0 : 1, scale);
  return true;
}

namespace {

template <class Numbers>
bool take_step(const OptimizerTensors& tensors, const Numbers& numbers) {
  if (!is_on_gpu(tensors.master_S) || !is_on_gpu(tensors.gradient_S)) return false;
  // shard::FlatParameters::refresh_compute() updates a copy on another device.
  for (const at::Tensor& each : {tensors.first_S, tensors.second_S, tensors.copy_S})
    if (each.defined() && !is_on_gpu(each)) return false;
  const c10::cuda::CUDAGuard guard(tensors.master_S.device());
  const int64_t decayed = tensors.num_decayed, all = tensors.master_S.numel();
  Numbers without_decay = numbers;
  without_decay.weight_decay = 0;
  return StepRange<Numbers>{tensors, 0, decayed, numbers}.run_as_stored() &&
         StepRange<Numbers>{tensors, decayed, all - decayed, without_decay}.run_as_stored();
}

}  // namespace

bool adamw(const OptimizerTensors& tensors, const AdamwNumbers& numbers) {
  return tensors.first_S.defined() && tensors.second_S.defined() && take_step(tensors, numbers);
}

bool sgd(const OptimizerTensors& tensors, const SgdNumbers& numbers) {
  return take_step(tensors, numbers);
}

bool split_masters(const at::Tensor& master, const at::Tensor& weight,
                   const at::Tensor& remainder) {
  if (!is_plain(master) || !is_on_gpu(weight) || !is_on_gpu(remainder)) return false;
  const c10::cuda::CUDAGuard guard(master.device());
  kernels::split_masters(current(), input<float>(master), output<Bf16>(weight),
                         output<uint16_t>(remainder), master.numel());
  return true;
}

bool join_masters(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& master) {
  if (!is_plain(master) || !is_on_gpu(weight) || !is_on_gpu(remainder)) return false;
  const c10::cuda::CUDAGuard guard(master.device());
  kernels::join_masters(current(), input<Bf16>(weight), input<uint16_t>(remainder),
                        output<float>(master), master.numel());
  return true;
}

bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE) {
  if (!is_on_gpu(rows_CE) || !sums_C.is_cuda() || sums_C.scalar_type() != at::kDouble) return false;
  const c10::cuda::CUDAGuard guard(rows_CE.device());
  return with_stored(rows_CE, [&]<class T>(T) {
    kernels::square_sums<T>(current(), input<T>(rows_CE), output<double>(sums_C), rows_CE.numel(),
                            rows_CE.size(1));
    return true;
  });
}

const bool kBuiltIn = true;

int cuda_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : CUDART_VERSION;
}

int device_count() { return c10::cuda::device_count(); }

void use(at::Device device) { c10::cuda::set_device(device.index()); }

void synchronize(at::Device device) {
  if (!device.is_cuda()) return;
  c10::cuda::set_device(device.index());
  c10::cuda::device_synchronize();
}

int64_t peak_memory_bytes(at::Device device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
}

int64_t free_memory_bytes(at::Device device) {
  c10::cuda::set_device(device.index());
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

namespace {

std::string pci_address(int index) {
  std::array<char, 32> text{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index));
  return text.data();
}

}  // namespace

bool has_flash_attention(const at::Tensor& q_BTNH) {
  constexpr int kAmpere = 8;
  constexpr int64_t kMaxWidth = 128;  // every such GPU computes gradients up to this width
  if (!q_BTNH.is_cuda() || !at::globalContext().userEnabledFlashSDP()) return false;
  const at::ScalarType dtype = q_BTNH.scalar_type();
  const int64_t width = q_BTNH.size(-1);
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && width % 8 == 0 && width <= kMaxWidth &&
         at::cuda::getDeviceProperties(q_BTNH.device().index())->major >= kAmpere;
}

std::string cudnn_version() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (!hooks.compiledWithCuDNN()) return "";
  const long version = hooks.versionRuntimeCuDNN();  // 91002 is 9.10.2
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::vector<std::string> architectures() {
  std::istringstream words(XFFL_CUDA_ARCHITECTURES);
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<Info> list() {
  std::vector<Info> gpus;
  for (int i = 0; i < device_count(); ++i) {
    const cudaDeviceProp* properties =
        at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(i));
    gpus.push_back({properties->name, static_cast<int64_t>(properties->totalGlobalMem),
                    std::to_string(properties->major) + "." + std::to_string(properties->minor),
                    pci_address(i)});
  }
  return gpus;
}

}  // namespace xffl::kernels::gpu
