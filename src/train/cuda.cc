#include "cuda.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/types.h>

namespace xffl::train::cuda {

const bool kBuiltIn = true;

int device_count() { return c10::cuda::device_count(); }

void use(at::Device device) { c10::cuda::set_device(device.index()); }

void synchronize(at::Device device) {
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

std::vector<GpuInfo> list() {
  std::vector<GpuInfo> gpus;
  for (int i = 0; i < device_count(); ++i) {
    const cudaDeviceProp* properties =
        at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(i));
    gpus.push_back({properties->name, static_cast<int64_t>(properties->totalGlobalMem),
                    std::to_string(properties->major) + "." + std::to_string(properties->minor)});
  }
  return gpus;
}

}  // namespace xffl::train::cuda
