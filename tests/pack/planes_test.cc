#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "plane_kernels.h"
#include "plane_loops.h"

namespace xffl::pack {
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

TEST(Planes, ToOrderedKeepsTheOrderOfFloats) {
  std::vector<uint16_t> words;
  for (uint32_t word = 0; word < 65536; ++word)
    if (!std::isnan(bf16(static_cast<uint16_t>(word))))
      words.push_back(static_cast<uint16_t>(word));
  std::sort(words.begin(), words.end(), [](uint16_t a, uint16_t b) {
    return static_cast<int16_t>(to_ordered(a)) < static_cast<int16_t>(to_ordered(b));
  });
  for (size_t i = 1; i < words.size(); ++i) ASSERT_LE(bf16(words[i - 1]), bf16(words[i]));
}

TEST(Planes, AUnitInTheLastPlaceEncodesAsOneOrTwo) {
  for (const uint16_t word : {0x0001, 0x3c7f, 0x3c80, 0x7f7e, 0xbc7f, 0xbc80}) {
    const auto up =
        static_cast<uint16_t>(to_ordered(static_cast<uint16_t>(word + 1)) - to_ordered(word));
    EXPECT_LE(zigzag(up), 2) << word;
    EXPECT_GE(zigzag(up), 1) << word;
  }
}

// Every word, without a reference and against 16 references.
TEST(Planes, AllInstructionSetsInvertAndAgree) {
  const std::vector<std::byte> words = all_words(1);
  const PlaneKernels& first = plane_kernels().front();
  for (const PlaneKernels& kernels : plane_kernels()) {
    SCOPED_TRACE(kernels.name);
    for (const size_t count : {size_t(0), size_t(1), size_t(31), size_t(65536)}) {
      std::vector<std::byte> low(count), high(count), low1(count), high1(count), back(2 * count);
      const auto same = [&] {
        return std::equal(back.begin(), back.end(), words.begin()) && low == low1 && high == high1;
      };
      kernels.split_words(words.data(), low.data(), high.data(), count);
      first.split_words(words.data(), low1.data(), high1.data(), count);
      kernels.join_words(low.data(), high.data(), back.data(), count);
      EXPECT_TRUE(same());
      for (int factor = 1; factor < 65536; factor += 4110) {
        const std::vector<std::byte> reference = all_words(static_cast<uint16_t>(factor));
        kernels.split_difference(words.data(), reference.data(), low.data(), high.data(), count);
        first.split_difference(words.data(), reference.data(), low1.data(), high1.data(), count);
        kernels.join_difference(low.data(), high.data(), reference.data(), back.data(), count);
        ASSERT_TRUE(same()) << factor;
      }
    }
  }
}

}  // namespace
}  // namespace xffl::pack
