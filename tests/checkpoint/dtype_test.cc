// The reference conversions follow the definitions of the formats in double arithmetic, without the
// implementation's bit operations.
#include "xffl/checkpoint/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "convert_kernels.h"
#include "files.h"

namespace xffl::checkpoint {
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

/// Rounds to nearest, ties to even: std::nearbyint on a double in units of the last place, exact.
uint16_t nearest(float value, Format format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const auto infinity =
      static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  if (std::isinf(value)) return sign | infinity;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double magnitude = std::abs(static_cast<double>(value));
  const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
  // Patterns are consecutive integers in units of the last place from zero.
  const double places = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double pattern = places + std::ldexp(exponent - (1 - bias), format.mantissa_bits);
  return sign | static_cast<uint16_t>(std::min<double>(pattern, infinity));
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  return patterns;
}

/// Random bit patterns, all values and midpoints of both formats, and the neighbours of these.
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
    add_around(65520.0f);  // the least value that rounds to infinity in fp16
    add_around(-65520.0f);
    add_around(3.3961775e38f);  // the least value that rounds to infinity in bf16
    std::mt19937 random(7);
    for (int i = 0; i < 2'000'000; ++i) {
      values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    }
    return values;
  }();
  return floats;
}

bool is_nan16(uint16_t bits, Format format) { return std::isnan(value_of(bits, format)); }

/// Expects a quiet NaN for a NaN, else exactly the nearest pattern.
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

TEST(Dtype, NamesAndSizes) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kI64,
                            Dtype::kI32, Dtype::kI16, Dtype::kI8, Dtype::kU8, Dtype::kBool}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(parse_dtype("F8_E4M3"), std::nullopt);
  EXPECT_EQ(size_bytes(Dtype::kBF16), 2u);
  EXPECT_EQ(size_bytes(Dtype::kBool), 1u);
  EXPECT_EQ(size_bytes(Dtype::kI64), 8u);
  EXPECT_TRUE(is_floating(Dtype::kF64));
  EXPECT_FALSE(is_floating(Dtype::kI32));
}

TEST(Dtype, EveryHalfConvertsToItsDefinedValue) {
  for (const uint16_t bits : all_patterns()) {
    expect_value(fp16_to_float(bits), bits, kFp16);
    expect_value(bf16_to_float(bits), bits, kBf16);
  }
}

TEST(Dtype, RoundsToTheNearestTiesToEven) {
  for (const float value : interesting_floats()) {
    expect_nearest(float_to_fp16(value), value, kFp16);
    expect_nearest(float_to_bf16(value), value, kBf16);
  }
}

TEST(Dtype, RoundsKnownValuesAndKeepsNans) {
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
  // A NaN with payload bits only below the rounding must not become an infinity.
  const float low_payload = std::bit_cast<float>(0x7f800001u);
  EXPECT_EQ(float_to_bf16(low_payload), 0x7fc0);
  EXPECT_EQ(float_to_fp16(low_payload), 0x7e00);
}

TEST(Dtype, HalvesSurviveTheRoundTrip) {
  for (const uint16_t bits : all_patterns()) {
    if (!is_nan16(bits, kFp16)) {
      ASSERT_EQ(float_to_fp16(fp16_to_float(bits)), bits);
    }
    if (!is_nan16(bits, kBf16)) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), bits);
    }
  }
}

class Kernels : public testing::TestWithParam<ConvertKernels> {};

TEST_P(Kernels, WideningMatchesTheScalarFunctions) {
  const std::vector<uint16_t> patterns = all_patterns();
  std::vector<float> found(patterns.size());
  // Unaligned on purpose: tensors in a file need not be aligned.
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

TEST_P(Kernels, NarrowingMatchesTheScalarFunctions) {
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

TEST_P(Kernels, WriteOnlyTheGivenElements) {
  for (size_t n = 0; n < 70; ++n) {
    const std::vector<float> values(n, 1.5f);
    std::vector<std::byte> narrow(2 * n + 2, std::byte{0x55});
    GetParam().float_to_bf16(values.data(), narrow.data(), n);
    ASSERT_EQ(narrow[2 * n], std::byte{0x55});
    std::vector<float> wide(n + 1, -1.0f);
    GetParam().bf16_to_float(narrow.data(), wide.data(), n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(wide[i], 1.5f);
    ASSERT_EQ(wide[n], -1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::ValuesIn(convert_kernels()),
                         [](const auto& kernels) { return std::string(kernels.param.name); });

TEST(Convert, RoundTripsSpansOfEachType) {
  const std::vector<float> values{0.0f, 1.0f, -2.5f, 65504.0f, 1e-7f};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
    from_float(values, dtype, bytes);
    std::vector<float> back(values.size());
    to_float(bytes, dtype, back);
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = dtype == Dtype::kF32   ? values[i]
                             : dtype == Dtype::kF16 ? fp16_to_float(float_to_fp16(values[i]))
                                                    : bf16_to_float(float_to_bf16(values[i]));
      EXPECT_EQ(back[i], expected) << to_string(dtype);
    }
  }
}

TEST(Convert, RejectsMismatchedSizesAndIntegers) {
  std::vector<float> floats(4);
  std::vector<std::byte> bytes(7);
  EXPECT_EQ(thrown_by([&] { to_float(bytes, Dtype::kBF16, floats); }).kind, ErrorKind::kInternal);
  bytes.resize(32);
  EXPECT_EQ(thrown_by([&] { to_float(bytes, Dtype::kI64, floats); }).kind, ErrorKind::kUnsupported);
}

template <class T>
std::vector<std::byte> raw(const std::vector<T>& values) {
  const auto view = std::as_bytes(std::span(values));
  return {view.begin(), view.end()};
}

TEST(FirstNonFinite, FindsTheFirstInEveryType) {
  for (const size_t size : {1u, 31u, 4096u, 4097u, 20'000u}) {
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      std::vector<float> f32(size, std::numeric_limits<float>::max());
      std::vector<double> f64(size, -std::numeric_limits<double>::max());
      std::vector<uint16_t> f16(size, 0x7bff);
      std::vector<uint16_t> bf16(size, 0xff7f);
      EXPECT_EQ(first_non_finite(raw(f32), Dtype::kF32), std::nullopt);
      EXPECT_EQ(first_non_finite(raw(f64), Dtype::kF64), std::nullopt);
      EXPECT_EQ(first_non_finite(raw(f16), Dtype::kF16), std::nullopt);
      EXPECT_EQ(first_non_finite(raw(bf16), Dtype::kBF16), std::nullopt);
      f32[at] = std::numeric_limits<float>::quiet_NaN();
      f64[at] = -std::numeric_limits<double>::infinity();
      f16[at] = 0xfc00;
      bf16[at] = 0x7f81;
      for (size_t later = at + 1; later < size; ++later) f32[later] = INFINITY;
      EXPECT_EQ(first_non_finite(raw(f32), Dtype::kF32), at);
      EXPECT_EQ(first_non_finite(raw(f64), Dtype::kF64), at);
      EXPECT_EQ(first_non_finite(raw(f16), Dtype::kF16), at);
      EXPECT_EQ(first_non_finite(raw(bf16), Dtype::kBF16), at);
    }
  }
}

TEST(FirstNonFinite, IntegersAreFinite) {
  EXPECT_EQ(first_non_finite(std::vector<std::byte>(16, std::byte{0xff}), Dtype::kI64),
            std::nullopt);
  EXPECT_EQ(first_non_finite({}, Dtype::kF32), std::nullopt);
}

}  // namespace
}  // namespace xffl::checkpoint
