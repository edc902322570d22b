// Bulk conversions, selected at run time for this CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xffl::checkpoint {

/// Loops for one instruction set; half-precision buffers may be unaligned and never overlap the
/// floats.
struct ConvertKernels {
  const char* name;
  void (*bf16_to_float)(const std::byte* from, float* to, size_t n);
  void (*fp16_to_float)(const std::byte* from, float* to, size_t n);
  void (*float_to_bf16)(const float* from, std::byte* to, size_t n);
  void (*float_to_fp16)(const float* from, std::byte* to, size_t n);
  bool (*any_non_finite_16)(const std::byte* from, size_t n, uint16_t exponent);
  bool (*any_non_finite_32)(const std::byte* from, size_t n, uint32_t exponent);
  bool (*any_non_finite_64)(const std::byte* from, size_t n, uint64_t exponent);
};

/// The sets that this CPU supports: the portable set first, the fastest last.
const std::vector<ConvertKernels>& convert_kernels();

/// The loops compiled for the compiler's base target.
ConvertKernels portable_kernels();

}  // namespace xffl::checkpoint
