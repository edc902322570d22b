// References: the formats' definitions in double arithmetic. A half's value is its definition's,
// and the nearest half (ties to even) is found by distances.
#include "xffl/kernels/cpu/conversions.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace xffl::kernels {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kFp16{5, 10};
constexpr Format kBf16{8, 7};

/// The value of a finite or infinite pattern; NaN for NaN.
double value_of(uint16_t bits, Format format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

/// Round to nearest, ties to even: in units of the last place, nearbyint does that exactly in
/// double.
uint16_t nearest(float value, Format format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const auto infinity =
      static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  if (std::isinf(value)) return sign | infinity;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double magnitude = std::abs(static_cast<double>(value));
  const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
  // Counted in last places from zero, patterns are consecutive integers.
  const double places = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double pattern = places + std::ldexp(exponent - (1 - bias), format.mantissa_bits);
  return sign | static_cast<uint16_t>(std::min<double>(pattern, infinity));
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  return patterns;
}

/// Random bit patterns, every half's value with its neighbours, and every midpoint with its
/// neighbours.
const std::vector<float>& interesting_floats() {
  static const std::vector<float> floats = [] {
    std::vector<float> values;
    const auto add_around = [&](float value) {
      const float infinity = std::numeric_limits<float>::infinity();
      for (const float v :
           {value, std::nextafter(value, infinity), std::nextafter(value, -infinity)}) {
        values.push_back(v);
      }
    };
    for (const Format format : {kFp16, kBf16}) {
      for (const uint16_t bits : all_patterns()) {
        const double here = value_of(bits, format);
        if (!std::isfinite(here)) continue;
        add_around(static_cast<float>(here));
        const double next = value_of(static_cast<uint16_t>(bits + 1), format);
        if (std::isfinite(next)) add_around(static_cast<float>((here + next) / 2));
      }
    }
    add_around(65520.0f);  // fp16: the first that rounds to infinity
    add_around(-65520.0f);
    add_around(3.3961775e38f);  // bf16: likewise
    std::mt19937 random(7);
    for (int i = 0; i < 2'000'000; ++i) {
      values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    }
    return values;
  }();
  return floats;
}

bool is_nan16(uint16_t bits, Format format) { return std::isnan(value_of(bits, format)); }

/// NaN for NaN and quiet, else the very same pattern.
void expect_nearest(uint16_t found, float value, Format format) {
  if (std::isnan(value)) {
    const int quiet = 1 << (format.mantissa_bits - 1);
    ASSERT_TRUE(is_nan16(found, format) && (found & quiet) != 0) << std::hex << found;
    return;
  }
  ASSERT_EQ(found, nearest(value, format)) << std::hexfloat << value;
}

void expect_value(float found, uint16_t bits, Format format) {
  const double expected = value_of(bits, format);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(found)) << std::hex << bits;
    return;
  }
  ASSERT_EQ(static_cast<double>(found), expected) << std::hex << bits;
  ASSERT_EQ(std::signbit(found), (bits & 0x8000) != 0) << std::hex << bits;
}

TEST(Half, EveryHalfHasItsDefinedValue) {
  for (const uint16_t bits : all_patterns()) {
    expect_value(fp16_to_float(bits), bits, kFp16);
    expect_value(bf16_to_float(bits), bits, kBf16);
  }
}

TEST(Half, RoundsToTheNearestTiesToEven) {
  for (const float value : interesting_floats()) {
    expect_nearest(float_to_fp16(value), value, kFp16);
    expect_nearest(float_to_bf16(value), value, kBf16);
  }
}

TEST(Half, RoundsKnownValuesToTheNearest) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80);  // 1 + 2^-8, half-way, down to even
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82);  // 1 + 3 * 2^-8, half-way, up to even
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_fp16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(-1e9f), 0xfc00);
  EXPECT_EQ(float_to_fp16(5.9604645e-8f), 0x0001);  // 2^-24
  EXPECT_EQ(float_to_fp16(2.9802322e-8f), 0x0000);  // 2^-25, half-way, down to even
  EXPECT_EQ(float_to_fp16(-0.0f), 0x8000);
  // A NaN whose payload sits only in the bits that are dropped must not become an infinity.
  const float low_payload = std::bit_cast<float>(0x7f800001u);
  EXPECT_EQ(float_to_bf16(low_payload), 0x7fc0);
  EXPECT_EQ(float_to_fp16(low_payload), 0x7e00);
}

TEST(Half, HalvesSurviveTheRoundTrip) {
  for (const uint16_t bits : all_patterns()) {
    if (!is_nan16(bits, kFp16)) {
      ASSERT_EQ(float_to_fp16(fp16_to_float(bits)), bits);
    }
    if (!is_nan16(bits, kBf16)) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), bits);
    }
  }
}

class ConversionSets : public testing::TestWithParam<Conversions> {};

TEST_P(ConversionSets, WidenLikeTheScalarFunctions) {
  const std::vector<uint16_t> patterns = all_patterns();
  std::vector<float> found(patterns.size());
  // Unaligned: a file does not align its tensors.
  std::vector<std::byte> shifted(patterns.size() * 2 + 1);
  std::memcpy(shifted.data() + 1, patterns.data(), patterns.size() * 2);
  GetParam().fp16_to_float(shifted.data() + 1, found.data(), found.size());
  for (const uint16_t bits : patterns) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[bits]), std::bit_cast<uint32_t>(fp16_to_float(bits)));
  }
  GetParam().bf16_to_float(shifted.data() + 1, found.data(), found.size());
  for (const uint16_t bits : patterns) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[bits]), std::bit_cast<uint32_t>(bf16_to_float(bits)));
  }
}

TEST_P(ConversionSets, NarrowLikeTheScalarFunctions) {
  const std::vector<float>& values = interesting_floats();
  std::vector<uint16_t> found(values.size());
  auto* const bytes = reinterpret_cast<std::byte*>(found.data());
  GetParam().float_to_fp16(values.data(), bytes, values.size());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(found[i], float_to_fp16(values[i])) << values[i];
  GetParam().float_to_bf16(values.data(), bytes, values.size());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(found[i], float_to_bf16(values[i])) << values[i];
}

TEST_P(ConversionSets, TouchNothingBeyondTheEnd) {
  const Conversions& set = GetParam();
  for (const auto& [narrowed, widened] : {std::pair(set.float_to_bf16, set.bf16_to_float),
                                          std::pair(set.float_to_fp16, set.fp16_to_float)}) {
    for (size_t n = 0; n < 70; ++n) {
      const std::vector<float> values(n, 1.5f);
      std::vector<std::byte> narrow(2 * n + 2, std::byte{0x55});
      narrowed(values.data(), narrow.data(), n);
      ASSERT_EQ(narrow[2 * n], std::byte{0x55});
      std::vector<float> wide(n + 1, -1.0f);
      widened(narrow.data(), wide.data(), n);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(wide[i], 1.5f);
      ASSERT_EQ(wide[n], -1.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConversionSets, testing::ValuesIn(all_conversions()),
                         [](const auto& set) { return std::string(set.param.name); });

}  // namespace
}  // namespace xffl::kernels
