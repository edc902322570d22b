#include "xffl/kernels/cpu/byte_planes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace xffl::kernels {
namespace {

float bf16(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<std::byte> all_words(uint16_t factor) {
  std::vector<std::byte> bytes(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto word = static_cast<uint16_t>(i * factor);
    std::memcpy(bytes.data() + 2 * i, &word, 2);
  }
  return bytes;
}

TEST(BytePlanes, NumbersGrowAsTheirFloatsDo) {
  std::vector<uint16_t> words;
  for (uint32_t word = 0; word < 65536; ++word)
    if (!std::isnan(bf16(static_cast<uint16_t>(word))))
      words.push_back(static_cast<uint16_t>(word));
  std::sort(words.begin(), words.end(), [](uint16_t a, uint16_t b) {
    return static_cast<int16_t>(in_order(a)) < static_cast<int16_t>(in_order(b));
  });
  for (size_t i = 1; i < words.size(); ++i) ASSERT_LE(bf16(words[i - 1]), bf16(words[i]));
}

TEST(BytePlanes, OneUnitInTheLastPlaceIsOneOrTwo) {
  for (const uint16_t word : {0x0001, 0x3c7f, 0x3c80, 0x7f7e, 0xbc7f, 0xbc80}) {
    const auto up =
        static_cast<uint16_t>(in_order(static_cast<uint16_t>(word + 1)) - in_order(word));
    EXPECT_LE(zigzag(up), 2) << word;
    EXPECT_GE(zigzag(up), 1) << word;
  }
}

uint16_t word_at(const std::vector<std::byte>& words, size_t index) {
  uint16_t word;
  std::memcpy(&word, words.data() + 2 * index, 2);
  return word;
}

// The counts have whole vectors, remainders, and neither.
constexpr size_t kCounts[] = {0, 1, 31, 65536};

struct Planes {
  explicit Planes(size_t count) : low(count), high(count) {}
  uint16_t code(size_t index) const {
    return static_cast<uint16_t>(static_cast<uint16_t>(low[index]) |
                                 static_cast<uint16_t>(high[index]) << 8);
  }
  std::vector<std::byte> low, high;
};

TEST(BytePlanes, WordsHaveTheirSignAtTheLowEndAndComeBack) {
  const std::vector<std::byte> words = all_words(1);
  for (const size_t count : kCounts) {
    Planes planes(count);
    std::vector<std::byte> back(2 * count);
    split_words(words.data(), planes.low.data(), planes.high.data(), count);
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(planes.code(i), static_cast<uint16_t>(i << 1 | i >> 15)) << i;
    join_words(planes.low.data(), planes.high.data(), back.data(), count);
    EXPECT_TRUE(std::equal(back.begin(), back.end(), words.begin()));
  }
}

// Every word against a few thousand other words.
TEST(BytePlanes, DifferencesAreZigzagCodesAndComeBack) {
  const std::vector<std::byte> words = all_words(1);
  for (const size_t count : kCounts) {
    for (int factor = 1; factor < 65536; factor += 4110) {
      const std::vector<std::byte> reference = all_words(static_cast<uint16_t>(factor));
      Planes planes(count);
      std::vector<std::byte> back(2 * count);
      split_difference(words.data(), reference.data(), planes.low.data(), planes.high.data(),
                       count);
      for (size_t i = 0; i < count; ++i) {
        const int difference = in_order(word_at(words, i)) - in_order(word_at(reference, i));
        ASSERT_EQ(planes.code(i), zigzag(static_cast<uint16_t>(difference))) << i;
      }
      join_difference(planes.low.data(), planes.high.data(), reference.data(), back.data(), count);
      ASSERT_TRUE(std::equal(back.begin(), back.end(), words.begin())) << factor;
    }
  }
}

}  // namespace
}  // namespace xffl::kernels
