// The trainer's calls of the CUDA runtime: cuda.cc, or no_cuda.cc in a build for CPUs.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "xffl/train/device.h"

namespace xffl::train::cuda {

extern const bool kBuiltIn;

/// 0 without a driver or a GPU.
int device_count();
void use(at::Device device);
void synchronize(at::Device device);
int64_t peak_memory_bytes(at::Device device);
/// The memory that no process uses. Creates this process's context first.
int64_t free_memory_bytes(at::Device device);
std::vector<GpuInfo> list();

}  // namespace xffl::train::cuda
