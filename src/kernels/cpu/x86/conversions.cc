// The conversions for AVX2 with F16C, which every x86-64 processor since 2013 has.
#include <immintrin.h>

#include "cpu/conversion_loops.h"
#include "cpu/x86.h"

namespace xffl::kernels {
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

Conversions avx2_conversions() {
  Conversions set = XFFL_CONVERSIONS("avx2");
  set.fp16_to_float = fp16_to_float_f16c;
  set.float_to_fp16 = float_to_fp16_f16c;
  return set;
}

#pragma GCC pop_options

}  // namespace

void x86::add_conversions(std::vector<Conversions>& sets) {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    sets.push_back(avx2_conversions());
}

}  // namespace xffl::kernels
