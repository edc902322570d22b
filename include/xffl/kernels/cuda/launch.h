// The stream and the GPU of a kernel's launch. No CUDA header and no torch header is needed.
#pragma once

struct CUstream_st;  // *cudaStream_t

namespace xffl::kernels {

/// Launches return at once: a launch's buffers must live until the stream has run the kernel.
struct Launch {
  CUstream_st* stream = nullptr;
  int num_multiprocessors = 1;
};

}  // namespace xffl::kernels
