// The loops of the conversions. Each file that includes them compiles them for its own target.
#pragma once

#include <cstddef>
#include <cstring>

#include "xffl/kernels/cpu/conversions.h"

namespace xffl::kernels {

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
  for (size_t i = 0; i < n; ++i) to[i] = bf16_to_float(load<uint16_t>(from, i));
}

XFFL_INLINE void fp16_to_float_loop(const std::byte* __restrict from, float* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = fp16_to_float(load<uint16_t>(from, i));
}

XFFL_INLINE void float_to_bf16_loop(const float* __restrict from, std::byte* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, float_to_bf16(from[i]));
}

XFFL_INLINE void float_to_fp16_loop(const float* __restrict from, std::byte* __restrict to,
                                    size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, float_to_fp16(from[i]));
}

/// Whether any of n elements has all bits of `exponent` set: an infinity or a NaN.
template <class Bits>
XFFL_INLINE bool any_non_finite_loop(const std::byte* from, size_t n, Bits exponent) {
  Bits found = 0;
  for (size_t i = 0; i < n; ++i) {
    found = static_cast<Bits>(found | ((load<Bits>(from, i) & exponent) == exponent ? 1 : 0));
  }
  return found != 0;
}

}  // namespace xffl::kernels

/// The initializer of a Conversions. The compiler compiles the lambdas for the target in force at
/// the macro's use.
#define XFFL_CONVERSIONS(NAME)                                                                 \
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
