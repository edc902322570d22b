// Words to byte planes and back, to be compiled for several instruction sets.
//
// How it works: every element function is free of branches and always inlined, so that the compiler
// vectorises the loops for whatever target their caller is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace xffl::pack {

#define XFFL_INLINE [[gnu::always_inline]] inline

XFFL_INLINE uint16_t word_at(const std::byte* words, size_t index) {
  uint16_t word;  // little-endian, as every processor that this is built for
  std::memcpy(&word, words + 2 * index, 2);
  return word;
}

XFFL_INLINE uint16_t sign_mask(uint16_t word) {
  return static_cast<uint16_t>(static_cast<int16_t>(word) >> 15);
}

/// Sign and magnitude to a number that grows as the float does, and back: it is its own inverse.
XFFL_INLINE uint16_t in_order(uint16_t word) {
  return static_cast<uint16_t>(word ^ (sign_mask(word) & 0x7fff));
}

/// 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
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
        static_cast<uint16_t>(in_order(word_at(words, i)) - in_order(word_at(reference, i))));
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
        in_order(static_cast<uint16_t>(unzigzag(code) + in_order(word_at(reference, i))));
    std::memcpy(words + 2 * i, &word, 2);
  }
}

/// Without a reference: the sign goes to the low end, so that the high plane is a BF16's exponent.
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

/// The initializer of a PlaneKernels: lambdas, so that they are compiled for the target in force
/// where it stands.
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
