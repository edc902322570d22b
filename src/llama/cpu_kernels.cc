// The loops once for the compiler's base target and, on x86-64, once more for AVX2 and for AVX-512,
// chosen when the program runs; attention of bfloat16 once more for AVX512-BF16.
#include "cpu_kernels.h"

#include "cpu_attention_bf16.h"
#include "cpu_loops.h"

namespace xffl::llama {
namespace {

template <class T>
struct KernelSet {
  CpuKernels<T> kernels[4];
  int count = 0;
};

// Functions, not templates: a template's lambdas are compiled where it is instantiated, for the
// base target.
void fill_portable(CpuKernels<float>& set) { set = XFFL_CPU_KERNELS(float); }
void fill_portable(CpuKernels<double>& set) { set = XFFL_CPU_KERNELS(double); }
void fill_portable(CpuKernels<Bf16>& set) { set = XFFL_CPU_KERNELS(Bf16); }

#ifdef __x86_64__

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
void fill_avx2(CpuKernels<float>& set) { set = XFFL_CPU_KERNELS(float); }
void fill_avx2(CpuKernels<double>& set) { set = XFFL_CPU_KERNELS(double); }
void fill_avx2(CpuKernels<Bf16>& set) { set = XFFL_CPU_KERNELS(Bf16); }
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
void fill_avx512(CpuKernels<float>& set) {
  set = XFFL_CPU_KERNELS(float);
  XFFL_CPU_ATTENTION(float, set);
}
void fill_avx512(CpuKernels<double>& set) {
  set = XFFL_CPU_KERNELS(double);
  XFFL_CPU_ATTENTION(double, set);
}
void fill_avx512(CpuKernels<Bf16>& set) {
  set = XFFL_CPU_KERNELS(Bf16);
  XFFL_CPU_ATTENTION(Bf16, set);
}
#pragma GCC pop_options

template <class T>
KernelSet<T> supported_cpu_kernels() {
  KernelSet<T> set;
  fill_portable(set.kernels[set.count++]);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (!avx2) return set;
  fill_avx2(set.kernels[set.count++]);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    fill_avx512(set.kernels[set.count++]);
  if constexpr (std::is_same_v<T, Bf16>) {
    if (set.count == 3) {
      set.kernels[3] = set.kernels[2];
      if (add_bf16_attention(set.kernels[3])) set.count = 4;
    }
  }
  return set;
}

#else

template <class T>
KernelSet<T> supported_cpu_kernels() {
  KernelSet<T> set;
  fill_portable(set.kernels[set.count++]);
  return set;
}

#endif

template <class T>
const KernelSet<T>& kernel_set() {
  static const KernelSet<T> set = supported_cpu_kernels<T>();
  return set;
}

}  // namespace

template <class T>
const CpuKernels<T>& cpu_kernels() {
  return kernel_set<T>().kernels[kernel_set<T>().count - 1];
}

template <class T>
const CpuKernels<T>* all_cpu_kernels(int* count) {
  *count = kernel_set<T>().count;
  return kernel_set<T>().kernels;
}

int64_t attention_scratch_size(const AttentionShape& shape) {
  const AttentionScratch size(shape);
  return 7 * size.matrix() + 4 * size.scores() + kAttentionBlock * size.width;
}

template const CpuKernels<float>& cpu_kernels<float>();
template const CpuKernels<double>& cpu_kernels<double>();
template const CpuKernels<Bf16>& cpu_kernels<Bf16>();
template const CpuKernels<float>* all_cpu_kernels<float>(int*);
template const CpuKernels<double>* all_cpu_kernels<double>(int*);
template const CpuKernels<Bf16>* all_cpu_kernels<Bf16>(int*);

}  // namespace xffl::llama
