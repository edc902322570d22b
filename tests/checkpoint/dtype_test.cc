#include "xffl/checkpoint/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "files.h"
#include "xffl/kernels/cpu/conversions.h"

namespace xffl::checkpoint {
namespace {

TEST(Dtype, HasTheNamesAndSizesOfSafetensors) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kI64,
                            Dtype::kI32, Dtype::kI16, Dtype::kI8, Dtype::kU8, Dtype::kBool}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(parse_dtype("F8_E4M3"), std::nullopt);
  EXPECT_EQ(size_bytes(Dtype::kBF16), 2u);
  EXPECT_EQ(size_bytes(Dtype::kBool), 1u);
  EXPECT_EQ(size_bytes(Dtype::kI64), 8u);
}

TEST(Convert, SpansOfEachType) {
  const std::vector<float> values{0.0f, 1.0f, -2.5f, 65504.0f, 1e-7f};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
    from_float(values, dtype, bytes);
    std::vector<float> back(values.size());
    to_float(bytes, dtype, back);
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = dtype == Dtype::kF32 ? values[i]
                             : dtype == Dtype::kF16
                                 ? kernels::fp16_to_float(kernels::float_to_fp16(values[i]))
                                 : kernels::bf16_to_float(kernels::float_to_bf16(values[i]));
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
