// x86-64: adds the loops for AVX2 with F16C (CPUs since 2013), selected at run time.
#include <immintrin.h>

#include "convert_kernels.h"
#include "convert_loops.h"

namespace xffl::checkpoint {
namespace {

#pragma GCC push_options
#pragma GCC target("avx2,f16c")

void fp16_to_float_f16c(const std::byte* from, float* to, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves;
    std::memcpy(&halves, from + 2 * i, sizeof halves);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  fp16_to_float_loop(from + 2 * i, to + i, n - i);
}

void float_to_fp16_f16c(const float* from, std::byte* to, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(to + 2 * i, &halves, sizeof halves);
  }
  float_to_fp16_loop(from + i, to + 2 * i, n - i);
}

ConvertKernels avx2_kernels() {
  ConvertKernels kernels = XFFL_CONVERT_KERNELS("avx2");
  kernels.fp16_to_float = fp16_to_float_f16c;
  kernels.float_to_fp16 = float_to_fp16_f16c;
  return kernels;
}

#pragma GCC pop_options

std::vector<ConvertKernels> supported_kernels() {
  std::vector<ConvertKernels> kernels{portable_kernels()};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    kernels.push_back(avx2_kernels());
  }
  return kernels;
}

}  // namespace

const std::vector<ConvertKernels>& convert_kernels() {
  static const std::vector<ConvertKernels> kernels = supported_kernels();
  return kernels;
}

}  // namespace xffl::checkpoint
