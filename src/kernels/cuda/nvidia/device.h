// The device functions of the kernels. tests/kernels/cuda/emulation/device.h has the same functions
// on a CPU, for tests on machines without a GPU.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <string>

#include "xffl/base/error.h"
#include "xffl/kernels/cuda/kernels.h"
#include "xffl/kernels/types.h"

#define XFFL_KERNEL(most_threads) __global__ void __launch_bounds__(most_threads)
#define XFFL_DEVICE __device__ __forceinline__
#define XFFL_SHARED __shared__

namespace xffl::kernels {

XFFL_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
XFFL_DEVICE int num_threads() { return static_cast<int>(blockDim.x); }
XFFL_DEVICE int64_t block_index() { return blockIdx.x; }
XFFL_DEVICE int64_t num_blocks() { return gridDim.x; }

/// Waits for all threads of the thread block and makes their writes visible to each other.
XFFL_DEVICE void sync() { __syncthreads(); }
/// Waits for the threads of a warp in the same way. Shuffles alone do not order reads and writes of
/// memory.
XFFL_DEVICE void sync_warp() { __syncwarp(); }
/// Returns the value of the thread of this warp whose index differs in the bits of `mask`. All
/// threads of the thread block call the function.
template <class F>
XFFL_DEVICE F shuffle_xor(F value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// Copies 16 bytes from an address that is a multiple of 16.
XFFL_DEVICE void copy16(void* to_registers, const void* from, int index) {
  const uint4 bytes = static_cast<const uint4*>(from)[index];
  memcpy(static_cast<char*>(to_registers) + 16 * index, &bytes, 16);
}
XFFL_DEVICE void write16(void* to, const void* registers, int index) {
  uint4 bytes;
  memcpy(&bytes, static_cast<const char*>(registers) + 16 * index, 16);
  static_cast<uint4*>(to)[index] = bytes;
}

XFFL_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
XFFL_DEVICE uint32_t as_bits(float value) { return __float_as_uint(value); }

XFFL_DEVICE float widen(float value) { return value; }
XFFL_DEVICE float widen(Bf16 value) { return as_float(static_cast<uint32_t>(value.bits) << 16); }
XFFL_DEVICE float widen(Half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}

/// Rounds to nearest, ties to even.
XFFL_DEVICE void narrow(float value, float& result) { result = value; }
XFFL_DEVICE void narrow(float value, Bf16& result) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
}
XFFL_DEVICE void narrow(float value, Half& result) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
}

/// exp and division; the error is smaller than that of rounding to T.
template <class T>
XFFL_DEVICE float exp_for(float x) {
  return __expf(x);
}
template <>
XFFL_DEVICE float exp_for<float>(float x) {
  return expf(x);
}
template <class T>
XFFL_DEVICE float divide_for(float x, float y) {
  return __fdividef(x, y);
}
template <>
XFFL_DEVICE float divide_for<float>(float x, float y) {
  return x / y;
}

/// Starts `kernel` on a grid of thread blocks.
template <class... Parameters, class... Arguments>
void launch(const Launch& on, const char* name, void (*kernel)(Parameters...), int64_t blocks,
            int threads, const Arguments&... arguments) {
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, on.stream>>>(
      arguments...);
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) {
    throw Error(ErrorKind::kFailed, std::string("the CUDA kernel ") + name + " on " +
                                        std::to_string(blocks) + " blocks of " +
                                        std::to_string(threads) +
                                        " threads: " + cudaGetErrorString(code));
  }
}

}  // namespace xffl::kernels
