// x86-64: adds the loops for AVX2, selected at run time.
#include "plane_kernels.h"
#include "plane_loops.h"

namespace xffl::pack {
namespace {

#pragma GCC push_options
#pragma GCC target("avx2")

PlaneKernels avx2_planes() { return XFFL_PLANE_KERNELS("avx2"); }

#pragma GCC pop_options

std::vector<PlaneKernels> supported_planes() {
  std::vector<PlaneKernels> kernels{portable_planes()};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(avx2_planes());
  return kernels;
}

}  // namespace

const std::vector<PlaneKernels>& plane_kernels() {
  static const std::vector<PlaneKernels> kernels = supported_planes();
  return kernels;
}

}  // namespace xffl::pack
