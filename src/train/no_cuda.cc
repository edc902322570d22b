#include "cuda.h"

namespace xffl::train::cuda {

const bool kBuiltIn = false;

int device_count() { return 0; }
void use(at::Device) {}
void synchronize(at::Device) {}
int64_t peak_memory_bytes(at::Device) { return 0; }
int64_t free_memory_bytes(at::Device) { return 0; }
std::vector<GpuInfo> list() { return {}; }

}  // namespace xffl::train::cuda
