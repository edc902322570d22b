#include "xffl/kernels/cuda/gpu.h"

namespace xffl::kernels::gpu {

using at::Tensor;

bool rms_norm(Tensor&, Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&, double) {
  return false;
}
bool rms_norm_backward(Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&) {
  return false;
}
bool swiglu(Tensor&, const Tensor&, const Tensor&) { return false; }
bool swiglu_backward(Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
bool rope(Tensor&, const Tensor&, const Tensor&, const Tensor&, double) { return false; }
bool accumulate(const Tensor&, const Tensor&, double, bool) { return false; }
bool cross_entropy(const Tensor&, const Tensor&, const Tensor&, int64_t, bool, double) {
  return false;
}
bool add_product(Tensor&, const Tensor&, const Tensor&, double, bool) { return false; }
bool adamw(const OptimizerTensors&, const AdamwNumbers&) { return false; }
bool sgd(const OptimizerTensors&, const SgdNumbers&) { return false; }
bool split_masters(const Tensor&, const Tensor&, const Tensor&) { return false; }
bool join_masters(const Tensor&, const Tensor&, const Tensor&) { return false; }
bool square_sums(const Tensor&, const Tensor&) { return false; }

bool has_flash_attention(const Tensor&) { return false; }
const bool kBuiltIn = false;
int cuda_version() { return 0; }
std::vector<Info> list() { return {}; }
std::string cudnn_version() { return ""; }
std::vector<std::string> architectures() { return {}; }
int device_count() { return 0; }
void use(at::Device) {}
void synchronize(at::Device) {}
int64_t peak_memory_bytes(at::Device) { return 0; }
int64_t free_memory_bytes(at::Device) { return 0; }

}  // namespace xffl::kernels::gpu
