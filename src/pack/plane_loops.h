// Conversion loops between words and byte planes, compiled for several instruction sets.
//
// How it works: every element function is branch-free and always inlined: the compiler vectorises
// the loops for the target of their caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace xffl::pack {

#define XFFL_INLINE [[gnu::always_inline]] inline

XFFL_INLINE uint16_t word_at(const std::byte* words, size_t index) {
  uint16_t word;  // little-endian, like every supported CPU
  std::memcpy(&word, words + 2 * index, 2);
  return word;
}

XFFL_INLINE uint16_t sign_mask(uint16_t word) {
  return static_cast<uint16_t>(static_cast<int16_t>(word) >> 15);
}

/// Maps a float's sign and magnitude to an integer with the order of the floats. Its own inverse.
XFFL_INLINE uint16_t to_ordered(uint16_t word) {
  return static_cast<uint16_t>(word ^ (sign_mask(word) & 0x7fff));
}

/// Maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
XFFL_INLINE uint16_t zigzag(uint16_t difference) {
  return static_cast<uint16_t>((difference << 1) ^ sign_mask(difference));
}
XFFL_INLINE uint16_t unzigzag(uint16_t code) {
  return static_cast<uint16_t>((code >> 1) ^ static_cast<uint16_t>(-(code & 1)));
}

XFFL_INLINE void split_difference_loop(const std::byte* __restrict words,
                                       const std::byte* __restrict reference,
                                       std::byte* __restrict low, std::byte* __restrict high,
                                       size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t code = zigzag(
        static_cast<uint16_t>(to_ordered(word_at(words, i)) - to_ordered(word_at(reference, i))));
    low[i] = static_cast<std::byte>(code & 0xff);
    high[i] = static_cast<std::byte>(code >> 8);
  }
}

XFFL_INLINE void join_difference_loop(const std::byte* __restrict low,
                                      const std::byte* __restrict high,
                                      const std::byte* __restrict reference,
                                      std::byte* __restrict words, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto code =
        static_cast<uint16_t>(static_cast<uint16_t>(low[i]) | static_cast<uint16_t>(high[i]) << 8);
    const uint16_t word =
        to_ordered(static_cast<uint16_t>(unzigzag(code) + to_ordered(word_at(reference, i))));
    std::memcpy(words + 2 * i, &word, 2);
  }
}

/// Without a reference: rotates the sign to the lowest bit; the high plane of BF16 is its exponent.
XFFL_INLINE void split_words_loop(const std::byte* __restrict words, std::byte* __restrict low,
                                  std::byte* __restrict high, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t word = word_at(words, i);
    const auto code = static_cast<uint16_t>(word << 1 | word >> 15);
    low[i] = static_cast<std::byte>(code & 0xff);
    high[i] = static_cast<std::byte>(code >> 8);
  }
}

XFFL_INLINE void join_words_loop(const std::byte* __restrict low, const std::byte* __restrict high,
                                 std::byte* __restrict words, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto code =
        static_cast<uint16_t>(static_cast<uint16_t>(low[i]) | static_cast<uint16_t>(high[i]) << 8);
    const auto word = static_cast<uint16_t>(code >> 1 | code << 15);
    std::memcpy(words + 2 * i, &word, 2);
  }
}

}  // namespace xffl::pack

/// The initializer of a PlaneKernels. Its lambdas are compiled for the target in force where the
/// macro is used.
#define XFFL_PLANE_KERNELS(NAME)                                                                  \
  {                                                                                               \
    NAME,                                                                                         \
        [](const std::byte* words, const std::byte* reference, std::byte* low, std::byte* high,   \
           size_t n) { split_difference_loop(words, reference, low, high, n); },                  \
        [](const std::byte* low, const std::byte* high, const std::byte* reference,               \
           std::byte* words, size_t n) { join_difference_loop(low, high, reference, words, n); }, \
        [](const std::byte* words, std::byte* low, std::byte* high, size_t n) {                   \
          split_words_loop(words, low, high, n);                                                  \
        },                                                                                        \
        [](const std::byte* low, const std::byte* high, std::byte* words, size_t n) {             \
          join_words_loop(low, high, words, n);                                                   \
        },                                                                                        \
  }
