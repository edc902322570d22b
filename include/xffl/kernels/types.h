// What the kernels for NVIDIA GPUs are called with: no CUDA and no torch header is needed.
#pragma once

#include <cstdint>

struct CUstream_st;  // *cudaStream_t

namespace xffl::kernels {

/// The bits of a bfloat16, and of an IEEE half.
struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

/// Where a kernel goes. Launches do not wait; their buffers must live until the stream is through.
struct Launch {
  CUstream_st* stream = nullptr;
  int num_multiprocessors = 1;
};

}  // namespace xffl::kernels
