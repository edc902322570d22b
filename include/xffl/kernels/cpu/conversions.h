// Bulk conversions between float32 and 16-bit types, and searches for infinities and NaNs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xffl::kernels {

/// The loops for one instruction set. Buffers of bytes may be unaligned; no two buffers overlap.
struct Conversions {
  const char* name;
  void (*bf16_to_float)(const std::byte* from, float* to, size_t n);
  void (*fp16_to_float)(const std::byte* from, float* to, size_t n);
  void (*float_to_bf16)(const float* from, std::byte* to, size_t n);
  void (*float_to_fp16)(const float* from, std::byte* to, size_t n);
  /// Whether any of n elements has all bits of `exponent` set.
  bool (*any_non_finite_16)(const std::byte* from, size_t n, uint16_t exponent);
  bool (*any_non_finite_32)(const std::byte* from, size_t n, uint32_t exponent);
  bool (*any_non_finite_64)(const std::byte* from, size_t n, uint64_t exponent);
};

/// The sets that this processor can run: the portable one first, the fastest one last. All sets
/// compute the same bits.
const std::vector<Conversions>& all_conversions();

}  // namespace xffl::kernels
