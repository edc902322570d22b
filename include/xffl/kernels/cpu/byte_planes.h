// Splits 16-bit words into two planes of bytes, low and high, and joins the planes again.
//
// Each loop works on n words. Buffers may be unaligned and never overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xffl/kernels/cpu/conversions.h"

namespace xffl::kernels {

XFFL_INLINE uint16_t sign_mask(uint16_t word) {
  return static_cast<uint16_t>(static_cast<int16_t>(word) >> 15);
}

/// Maps the bits of a float (sign and magnitude) to an integer, in the order of the floats. The
/// function is its own inverse.
XFFL_INLINE uint16_t in_order(uint16_t word) {
  return static_cast<uint16_t>(word ^ (sign_mask(word) & 0x7fff));
}

/// Maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
XFFL_INLINE uint16_t zigzag(uint16_t difference) {
  return static_cast<uint16_t>((difference << 1) ^ sign_mask(difference));
}
XFFL_INLINE uint16_t unzigzag(uint16_t code) {
  return static_cast<uint16_t>((code >> 1) ^ static_cast<uint16_t>(-(code & 1)));
}

/// Splits the zigzag codes of the differences between `words` and `reference`, each mapped by
/// in_order().
void split_difference(const std::byte* words, const std::byte* reference, std::byte* low,
                      std::byte* high, size_t n);
void join_difference(const std::byte* low, const std::byte* high, const std::byte* reference,
                     std::byte* words, size_t n);

/// Splits without a reference. The sign moves to the low end of a word, so that the high plane is a
/// bfloat16's exponent.
void split_words(const std::byte* words, std::byte* low, std::byte* high, size_t n);
void join_words(const std::byte* low, const std::byte* high, std::byte* words, size_t n);

}  // namespace xffl::kernels
