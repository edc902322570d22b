#include "xffl/kernels/cpu/byte_planes.h"

#include <cstring>

#include "cpu/target_clones.h"

namespace xffl::kernels {
namespace {

XFFL_INLINE uint16_t word_at(const std::byte* words, size_t index) {
  uint16_t word;  // little-endian, like every supported processor
  std::memcpy(&word, words + 2 * index, 2);
  return word;
}

XFFL_INLINE uint16_t join_bytes(std::byte low, std::byte high) {
  return static_cast<uint16_t>(static_cast<uint16_t>(low) | static_cast<uint16_t>(high) << 8);
}

XFFL_INLINE void split_bytes(uint16_t word, std::byte& low, std::byte& high) {
  low = static_cast<std::byte>(word & 0xff);
  high = static_cast<std::byte>(word >> 8);
}

}  // namespace

XFFL_TARGET_CLONES("avx2", "default")
void split_difference(const std::byte* __restrict words, const std::byte* __restrict reference,
                      std::byte* __restrict low, std::byte* __restrict high, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t code = zigzag(
        static_cast<uint16_t>(in_order(word_at(words, i)) - in_order(word_at(reference, i))));
    split_bytes(code, low[i], high[i]);
  }
}

XFFL_TARGET_CLONES("avx2", "default")
void join_difference(const std::byte* __restrict low, const std::byte* __restrict high,
                     const std::byte* __restrict reference, std::byte* __restrict words, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t code = join_bytes(low[i], high[i]);
    const uint16_t word =
        in_order(static_cast<uint16_t>(unzigzag(code) + in_order(word_at(reference, i))));
    std::memcpy(words + 2 * i, &word, 2);
  }
}

XFFL_TARGET_CLONES("avx2", "default")
void split_words(const std::byte* __restrict words, std::byte* __restrict low,
                 std::byte* __restrict high, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t word = word_at(words, i);
    const auto code = static_cast<uint16_t>(word << 1 | word >> 15);
    split_bytes(code, low[i], high[i]);
  }
}

XFFL_TARGET_CLONES("avx2", "default")
void join_words(const std::byte* __restrict low, const std::byte* __restrict high,
                std::byte* __restrict words, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t code = join_bytes(low[i], high[i]);
    const auto word = static_cast<uint16_t>(code >> 1 | code << 15);
    std::memcpy(words + 2 * i, &word, 2);
  }
}

}  // namespace xffl::kernels
