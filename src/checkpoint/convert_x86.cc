// x86-64: the loops once more for AVX2 and for AVX-512, chosen when the program runs.
#include "convert_kernels.h"
#include "convert_loops.h"

namespace xffl::checkpoint {
namespace {

#pragma GCC push_options
#pragma GCC target("avx2")
ConvertKernels avx2_kernels() { return XFFL_CONVERT_KERNELS("avx2"); }
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
ConvertKernels avx512_kernels() { return XFFL_CONVERT_KERNELS("avx512"); }
#pragma GCC pop_options

std::vector<ConvertKernels> supported_kernels() {
  std::vector<ConvertKernels> kernels{portable_kernels()};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(avx2_kernels());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    kernels.push_back(avx512_kernels());
  }
  return kernels;
}

}  // namespace

const std::vector<ConvertKernels>& convert_kernels() {
  static const std::vector<ConvertKernels> kernels = supported_kernels();
  return kernels;
}

}  // namespace xffl::checkpoint
