// The types of the numbers that kernels for CPUs and for GPUs work on.
#pragma once

#include <cstdint>
#include <type_traits>

namespace xffl::kernels {

/// The bits of a bfloat16; Half holds the bits of an IEEE half.
struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

/// The type in which the CPU computes sums and functions of T.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace xffl::kernels
