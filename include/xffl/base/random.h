// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), the
// only pseudorandom number generator of xffl.
//
// The generator uses only integer arithmetic modulo 2^64: every machine, compiler and standard
// library draws the same numbers. Data orders, initial weights and job seeds depend on these bits,
// which never change. The numbers are unfit for secrets.
#pragma once

#include <cstdint>

namespace xffl {

/// The increment of the state: the odd number next to 2^64 / golden ratio.
inline constexpr uint64_t kSplitMix64Step = 0x9E3779B97F4A7C15u;

/// The output function: a well-mixing bijection of 64 bits. Number n (from 1) of the generator with
/// `seed` is splitmix64_mix(seed + n * kSplitMix64Step), computed without the other numbers.
constexpr uint64_t splitmix64_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The generator. Not thread-safe.
class SplitMix64 {
 public:
  constexpr explicit SplitMix64(uint64_t seed) : state_(seed) {}

  constexpr uint64_t next() { return splitmix64_mix(state_ += kSplitMix64Step); }

 private:
  uint64_t state_;
};

/// The upper 53 bits as a double in [0, 1): every multiple of 2^-53 is equally likely.
constexpr double to_unit_interval(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace xffl
