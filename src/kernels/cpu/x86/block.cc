// The loops for AVX2 and for AVX-512; attention of bfloat16 for AVX512-BF16, too.
#include "cpu/block_loops.h"
#include "cpu/x86.h"

namespace xffl::kernels {
namespace {

// A function for each type, not a template: the compiler would instantiate a template's lambdas for
// the base target.
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
void fill_avx2(BlockKernels<float>& set) { set = XFFL_BLOCK_KERNELS(float); }
void fill_avx2(BlockKernels<double>& set) { set = XFFL_BLOCK_KERNELS(double); }
void fill_avx2(BlockKernels<Bf16>& set) { set = XFFL_BLOCK_KERNELS(Bf16); }
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
void fill_avx512(BlockKernels<float>& set) {
  set = XFFL_BLOCK_KERNELS(float);
  XFFL_ATTENTION(float, set);
}
void fill_avx512(BlockKernels<double>& set) {
  set = XFFL_BLOCK_KERNELS(double);
  XFFL_ATTENTION(double, set);
}
void fill_avx512(BlockKernels<Bf16>& set) {
  set = XFFL_BLOCK_KERNELS(Bf16);
  XFFL_ATTENTION(Bf16, set);
}
#pragma GCC pop_options

template <class T>
void add_supported(std::vector<BlockKernels<T>>& sets) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi2"))
    return;
  BlockKernels<T> set{};
  fill_avx2(set);
  sets.push_back(set);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return;
  fill_avx512(set);
  sets.push_back(set);
  if constexpr (std::is_same_v<T, Bf16>) {
    if (x86::add_bf16_attention(set)) sets.push_back(set);
  }
}

}  // namespace

namespace x86 {
void add_block_kernels(std::vector<BlockKernels<float>>& sets) { add_supported(sets); }
void add_block_kernels(std::vector<BlockKernels<double>>& sets) { add_supported(sets); }
void add_block_kernels(std::vector<BlockKernels<Bf16>>& sets) { add_supported(sets); }
}  // namespace x86

}  // namespace xffl::kernels
