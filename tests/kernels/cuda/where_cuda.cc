#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include "where.h"

namespace xffl::kernels {

at::Device device() { return {at::kCUDA, 0}; }
std::string reason_to_skip() {
  return c10::cuda::device_count() > 0 ? "" : "no GPU is visible here";
}
Launch on() {
  return {at::cuda::getCurrentCUDAStream().stream(),
          at::cuda::getCurrentDeviceProperties()->multiProcessorCount};
}
void set_falling(bool) {}

}  // namespace xffl::kernels
