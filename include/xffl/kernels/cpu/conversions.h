// Conversions between float32 and the 16-bit types, rounded to nearest with ties to even, and bulk
// searches for infinities and NaNs.
//
// How it works: the functions of one value have selects instead of branches and are always inlined.
// The compiler therefore vectorises a loop over them for the target of the loop's function. Only
// the subnormals of IEEE halves depend on the floating-point environment (round to nearest, ties to
// even).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#define XFFL_INLINE [[gnu::always_inline]] inline

namespace xffl::kernels {

XFFL_INLINE float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

XFFL_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

XFFL_INLINE float fp16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);  // exponent bias 15 -> 127
  const uint32_t special = shifted | 0x7f800000u;  // infinity and NaN
  const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
  // A subnormal is magnitude * 2^-24: put the magnitude below the implicit one of 2^-14, then
  // subtract 2^-14.
  const float lifted =
      std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t finite = magnitude < 0x400u ? std::bit_cast<uint32_t>(lifted) : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special | quiet : finite));
}

XFFL_INLINE uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // At least 2^-14: drop 13 bits, rounding to even. A carry runs into the exponent, up to infinity.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 makes the hardware round at 2^-24, fp16's smallest step.
  const float lifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(lifted) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t special = magnitude > 0x7f800000u ? nan : 0x7c00u;
  return static_cast<uint16_t>(sign | (magnitude >= (143u << 23) ? special : finite));
}

/// The loops for one instruction set. Byte buffers may be unaligned; no two buffers overlap.
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

/// The sets of loops that this processor can run, from the portable set to the fastest set. All
/// sets compute the same bits.
const std::vector<Conversions>& all_conversions();

}  // namespace xffl::kernels
