// The trainer's access to GPUs: the CUDA kernels on tensors, and the calls of the CUDA runtime.
// gpu.cc implements the functions; no_gpu.cc replaces it in a build for CPUs.
//
// A function that returns bool returns false, and does nothing, for other devices and dtypes, and
// in a build without CUDA. llama/pointwise.h, llama/head_loss.h and shard/ define the results. The
// functions queue their work on the current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "xffl/kernels/cuda/kernels.h"

namespace xffl::kernels::gpu {

bool rms_norm(at::Tensor& sum_BTD, at::Tensor& normed_BTD, at::Tensor& inverse_BT1,
              const at::Tensor& x_BTD, const at::Tensor& delta_BTD, const at::Tensor& w_D,
              double epsilon);
bool rms_norm_backward(at::Tensor& grad_x_BTD, at::Tensor& grad_w_D,
                       const at::Tensor& grad_normed_BTD, const at::Tensor& grad_sum_BTD,
                       const at::Tensor& sum_BTD, const at::Tensor& inverse_BT1,
                       const at::Tensor& w_D);
bool swiglu(at::Tensor& result, const at::Tensor& gate_BTI, const at::Tensor& up_BTI);
bool swiglu_backward(at::Tensor& grad_gate_BTI, at::Tensor& grad_up_BTI, const at::Tensor& grad_BTI,
                     const at::Tensor& gate_BTI, const at::Tensor& up_BTI);
bool rope(at::Tensor& result, const at::Tensor& x_BTNH, const at::Tensor& cos_AF,
          const at::Tensor& sin_AF, double sign);
bool accumulate(const at::Tensor& sum, const at::Tensor& update, double scale, bool overwrite);
/// The rows' NLL. With `into_gradient` the logits become scale * (softmax - one_hot(label)).
bool cross_entropy(const at::Tensor& logits_RV, const at::Tensor& labels_R, const at::Tensor& nll_R,
                   int64_t ignore, bool into_gradient, double scale);
/// sum_MK = scale * a_NM^T b_NK, or sum_MK += the product, for 16-bit factors and a float32 sum.
/// The product is never rounded to 16 bits.
bool add_product(at::Tensor& sum_MK, const at::Tensor& a_NM, const at::Tensor& b_NK, double scale,
                 bool overwrite);

/// A unit's masters in their storage (shard::UnitState), their gradients and their moments. SGD has
/// no second moments, and without momentum no first moments either.
struct OptimizerTensors {
  const at::Tensor &master_S, &remainder_S, &gradient_S, &copy_S, &first_S, &second_S;
  int64_t num_decayed = 0;  // weight decay applies to elements [0, num_decayed)
};
/// Takes a step of AdamW or Adam. The same pass rounds float32 masters into their 16-bit copy, if
/// there is one.
bool adamw(const OptimizerTensors& tensors, const AdamwNumbers& numbers);
bool sgd(const OptimizerTensors& tensors, const SgdNumbers& numbers);
bool split_masters(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder);
bool join_masters(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& master);
/// The sum of squares of each row.
bool square_sums(const at::Tensor& sums_C, const at::Tensor& rows_CE);

/// Whether ATen's flash attention (Dao, 2023) takes these queries and their keys and values: 16-bit
/// heads of at most 128 elements, in multiples of 8, on GPUs from Ampere on, unless
/// at::Context::setSDPUseFlash(false) excludes it.
bool has_flash_attention(const at::Tensor& q_BTNH);

extern const bool kBuiltIn;
/// The version of the CUDA runtime that is loaded, such as 13000 or 12080; 0 in a build without
/// CUDA. Needs no driver. The compiler may have been an older one (the bundle cu128).
int cuda_version();

/// The version of cuDNN that the process has loaded: "9.10.2"; "" in a build without CUDA.
std::string cudnn_version();
/// The GPU architectures for which the kernels are compiled: "80-real", "90".
std::vector<std::string> architectures();

struct Info {
  std::string name;
  int64_t memory_bytes = 0;
  std::string capability;   // "9.0"
  std::string pci_address;  // "0000:3b:00.0"
};
std::vector<Info> list();
/// 0 without a driver or a GPU.
int device_count();
void use(at::Device device);
/// Waits for the queued work of a GPU, so that a clock measures the work.
void synchronize(at::Device device);
int64_t peak_memory_bytes(at::Device device);
/// The bytes of GPU memory that no process uses. Creates this process's CUDA context first.
int64_t free_memory_bytes(at::Device device);

}  // namespace xffl::kernels::gpu
