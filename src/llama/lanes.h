// Sixteen floats or eight doubles at a time, in the compiler's own vector types: the same source
// becomes AVX-512, AVX2 or whatever the target in force has. bfloat16 is read and written as float.
//
// All functions are inlined into their caller, and so compiled for its target. Loads and stores
// need no alignment; the `_part` ones touch `count` elements only, the other lanes read as zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace xffl::llama {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here is ever called, so no ABI is involved

#define XFFL_LANES [[gnu::always_inline]] inline

/// The bits of a bfloat16.
struct Bf16 {
  uint16_t bits;
};

/// What T is computed in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

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

XFFL_LANES Lanes<float> widen_lanes(Halves16 bits) {
  return std::bit_cast<Lanes<float>>(__builtin_convertvector(bits, Words16) << 16);
}

// To nearest, ties to even; a NaN stays one.
XFFL_LANES Halves16 narrow_lanes(Lanes<float> values) {
  const Words16 bits = std::bit_cast<Words16>(values);
  const Words16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words16 quiet_nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector(values != values ? quiet_nan : rounded, Halves16);
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

/// The values as they are after a store and a load.
template <class T>
XFFL_LANES Lanes<Wide<T>> rounded_to(Lanes<Wide<T>> values) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return widen_lanes(narrow_lanes(values));
  } else {
    return values;
  }
}

template <class W>
XFFL_LANES W sum_of(Lanes<W> values) {
  W sum = 0;
  for (int64_t i = 0; i < kLanes<W>; ++i) sum += values[i];
  return sum;
}

template <class W>
XFFL_LANES W max_of(Lanes<W> values) {
  W max = values[0];
  for (int64_t i = 1; i < kLanes<W>; ++i) max = values[i] > max ? values[i] : max;
  return max;
}

/// e^x within 2 units in the last place for x in [-87, 88], clamped outside; NaN stays NaN. The
/// range reduction and polynomial of Cephes' expf.
XFFL_LANES Lanes<float> exp_lanes(Lanes<float> x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
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

}  // namespace xffl::llama
