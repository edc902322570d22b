// Sixteen floats or eight doubles at a time, in the compiler's own vector types. The same source
// becomes AVX-512, AVX2 or another instruction set of the target in force. Functions read and write
// bfloat16 as float.
//
// The compiler inlines every function into its caller and compiles the function for the caller's
// target. Loads and stores need no alignment. load_part and store_part touch `count` elements only;
// load_part sets the other lanes to zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "xffl/kernels/types.h"

namespace xffl::kernels {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // inlined functions have no ABI

#define XFFL_LANES [[gnu::always_inline]] inline

template <class W>
struct LanesOf {
  typedef W Values __attribute__((vector_size(64)));
};
template <class W>
using Lanes = typename LanesOf<W>::Values;
template <class W>
inline constexpr int64_t kLanes = 64 / static_cast<int64_t>(sizeof(W));

typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef uint32_t Words16 __attribute__((vector_size(64)));

template <class W>
XFFL_LANES Lanes<W> broadcast(W value) {
  return Lanes<W>{} + value;
}

/// `yes` where the mask's bits are all ones, `no` where the bits are zero. (GCC lowers a vector's
/// comparison to scalar code for the base target, unless the comparison is a minimum or a maximum.)
template <class Mask, class Values>
XFFL_LANES Values select(Mask mask, Values yes, Values no) {
  return std::bit_cast<Values>((std::bit_cast<Mask>(yes) & mask) |
                               (std::bit_cast<Mask>(no) & ~mask));
}

XFFL_LANES Lanes<float> widen_lanes(Halves16 bits) {
  return std::bit_cast<Lanes<float>>(__builtin_convertvector(bits, Words16) << 16);
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
XFFL_LANES Halves16 narrow_lanes(Lanes<float> values) {
  const Words16 bits = std::bit_cast<Words16>(values);
  const Words16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words16 quiet_nan = (bits >> 16) | 0x40u;
  // The highest bit of the difference gives the mask: the magnitude exceeds infinity's.
  const Words16 is_nan = 0u - ((0x7f800000u - (bits & 0x7fffffffu)) >> 31);
  return __builtin_convertvector(select(is_nan, quiet_nan, rounded), Halves16);
}

template <class T>
XFFL_LANES Lanes<Wide<T>> load(const T* from) {
  if constexpr (std::is_same_v<T, Bf16>) {
    Halves16 bits;
    std::memcpy(&bits, from, sizeof bits);
    return widen_lanes(bits);
  } else {
    Lanes<T> values;
    std::memcpy(&values, from, sizeof values);
    return values;
  }
}

template <class T>
XFFL_LANES void store(T* to, Lanes<Wide<T>> values) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const Halves16 bits = narrow_lanes(values);
    std::memcpy(to, &bits, sizeof bits);
  } else {
    std::memcpy(to, &values, sizeof values);
  }
}

template <class T>
XFFL_LANES Lanes<Wide<T>> load_part(const T* from, int64_t count) {
  T buffer[kLanes<Wide<T>>] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  return load(buffer);
}

template <class T>
XFFL_LANES void store_part(T* to, Lanes<Wide<T>> values, int64_t count) {
  T buffer[kLanes<Wide<T>>];
  store(buffer, values);
  for (int64_t i = 0; i < count; ++i) to[i] = buffer[i];
}

template <class T>
XFFL_LANES Wide<T> load_one(const T* from) {
  return load_part(from, 1)[0];
}

template <class T>
XFFL_LANES void store_one(T* to, Wide<T> value) {
  store_part(to, broadcast<Wide<T>>(value), 1);
}

/// The values that a store and a load would give.
template <class T>
XFFL_LANES Lanes<Wide<T>> rounded_to(Lanes<Wide<T>> values) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return widen_lanes(narrow_lanes(values));
  } else {
    return values;
  }
}

template <class W>
struct IndicesOf {
  typedef std::conditional_t<sizeof(W) == 8, int64_t, int32_t> Index;
  typedef Index Values __attribute__((vector_size(64)));
};

/// The lanes begin, ..., end - 1 keep their values; the other lanes become `other`.
template <class W>
XFFL_LANES Lanes<W> only_lanes(Lanes<W> values, int64_t begin, int64_t end, W other) {
  using Index = typename IndicesOf<W>::Index;
  using Indices = typename IndicesOf<W>::Values;
  Indices lanes;
  if constexpr (sizeof(W) == 8) {
    lanes = Indices{0, 1, 2, 3, 4, 5, 6, 7};
  } else {
    lanes = Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  }
  const Indices before = lanes - static_cast<Index>(begin);
  const Indices behind = static_cast<Index>(end) - 1 - lanes;
  return select((before | behind) >> (8 * sizeof(W) - 1), broadcast<W>(other), values);
}

template <class W, int kCount>
struct PartOf {
  typedef W Values __attribute__((vector_size(kCount * sizeof(W))));
};

/// Combines the two halves of 2 kCount lanes, then the two halves of the result, and so on, as a
/// tree.
template <class W, int kCount, class Combine>
XFFL_LANES W reduce(typename PartOf<W, 2 * kCount>::Values values, const Combine& combine) {
  struct Halves {
    typename PartOf<W, kCount>::Values low, high;
  };
  const Halves halves = std::bit_cast<Halves>(values);
  const auto half = combine(halves.low, halves.high);
  if constexpr (kCount == 2) {
    return combine(half[0], half[1]);
  } else {
    return reduce<W, kCount / 2>(half, combine);
  }
}

template <class W>
XFFL_LANES W sum_of(Lanes<W> values) {
  return reduce<W, kLanes<W> / 2>(
      values, [](const auto& a, const auto& b) [[gnu::always_inline]] { return a + b; });
}

template <class W>
XFFL_LANES W max_of(Lanes<W> values) {
  return reduce<W, kLanes<W> / 2>(
      values, [](const auto& a, const auto& b) [[gnu::always_inline]] { return a > b ? a : b; });
}

/// e^x within 2 units in the last place for x in [-87, 88]; x outside is clamped, and NaN stays
/// NaN. Range reduction and polynomial are those of Cephes' expf.
XFFL_LANES Lanes<float> exp_lanes(Lanes<float> x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: an addition rounds to an integer
  x = x < -87.0f ? broadcast<float>(-87.0f) : x;
  x = x > 88.0f ? broadcast<float>(88.0f) : x;
  const Lanes<float> shifted = x * 1.44269504088896341f + kToInteger;
  const Lanes<float> n = shifted - kToInteger;
  const Lanes<float> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Lanes<float> p = broadcast<float>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Words16 exponent = (std::bit_cast<Words16>(shifted) + 127u) << 23;
  return p * std::bit_cast<Lanes<float>>(exponent);
}

XFFL_LANES Lanes<double> exp_lanes(Lanes<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = std::exp(x[i]);
  return x;
}

#pragma GCC diagnostic pop

}  // namespace xffl::kernels
