// The conversion loops, compiled for several instruction sets.
//
// How it works: every element function is branch-free (selects only) and always inlined: the
// compiler vectorises the loops for the target of their caller. Only the rounding of fp16
// subnormals relies on the default floating-point environment (round to nearest, ties to even).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace xffl::checkpoint {

#define XFFL_INLINE [[gnu::always_inline]] inline

XFFL_INLINE float bf16_element_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

XFFL_INLINE uint16_t float_element_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

XFFL_INLINE float fp16_element_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);  // exponent bias 15 -> 127
  const uint32_t special = shifted | 0x7f800000u;  // infinity and NaN
  const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
  // A subnormal is magnitude * 2^-24: adding it to 2^-14 and subtracting 2^-14 normalizes it.
  const float lifted =
      std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t finite = magnitude < 0x400u ? std::bit_cast<uint32_t>(lifted) : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special | quiet : finite));
}

XFFL_INLINE uint16_t float_element_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // From 2^-14 on: drop 13 bits, rounding to even; a carry increments the exponent, up to infinity.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 makes the hardware round at 2^-24, the smallest fp16 step.
  const float lifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(lifted) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t special = magnitude > 0x7f800000u ? nan : 0x7c00u;
  return static_cast<uint16_t>(sign | (magnitude >= (143u << 23) ? special : finite));
}

template <class T>
XFFL_INLINE T load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
XFFL_INLINE void store(std::byte* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

XFFL_INLINE void bf16_to_float_loop(const std::byte* __restrict from, float* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = bf16_element_to_float(load<uint16_t>(from, i));
}

XFFL_INLINE void fp16_to_float_loop(const std::byte* __restrict from, float* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = fp16_element_to_float(load<uint16_t>(from, i));
}

XFFL_INLINE void float_to_bf16_loop(const float* __restrict from, std::byte* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, float_element_to_bf16(from[i]));
}

XFFL_INLINE void float_to_fp16_loop(const float* __restrict from, std::byte* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, float_element_to_fp16(from[i]));
}

/// True when any of n elements has all bits of `exponent` set, as infinities and NaNs do.
template <class Bits>
XFFL_INLINE bool any_non_finite_loop(const std::byte* from, size_t n, Bits exponent) {
  Bits found = 0;
  for (size_t i = 0; i < n; ++i) {
    found = static_cast<Bits>(found | ((load<Bits>(from, i) & exponent) == exponent ? 1 : 0));
  }
  return found != 0;
}

}  // namespace xffl::checkpoint

/// The initializer of a ConvertKernels. Its lambdas are compiled for the target in force where the
/// macro is used.
#define XFFL_CONVERT_KERNELS(NAME)                                                             \
  {                                                                                            \
    NAME, [](const std::byte* from, float* to, size_t n) { bf16_to_float_loop(from, to, n); }, \
        [](const std::byte* from, float* to, size_t n) { fp16_to_float_loop(from, to, n); },   \
        [](const float* from, std::byte* to, size_t n) { float_to_bf16_loop(from, to, n); },   \
        [](const float* from, std::byte* to, size_t n) { float_to_fp16_loop(from, to, n); },   \
        [](const std::byte* from, size_t n, uint16_t exponent) {                               \
          return any_non_finite_loop(from, n, exponent);                                       \
        },                                                                                     \
        [](const std::byte* from, size_t n, uint32_t exponent) {                               \
          return any_non_finite_loop(from, n, exponent);                                       \
        },                                                                                     \
        [](const std::byte* from, size_t n, uint64_t exponent) {                               \
          return any_non_finite_loop(from, n, exponent);                                       \
        },                                                                                     \
  }
