// Reference: the product of the same bfloat16 values in float64. LibTorch's product, the default,
// is compared in the same way.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "product.h"
#include "xffl/kernels/cpu/bf16_product.h"
#include "xffl/llama/weight.h"

namespace xffl::llama {
namespace {

struct ProductCase {
  int64_t rows, width, depth;
  bool a_transposed, b_transposed;
};

// Whole tiles and steps, then fewer, one more, and odd sizes.
const ProductCase kProductCases[] = {
    {64, 96, 320, false, false},  {64, 96, 320, false, true},   {64, 96, 320, true, false},
    {64, 96, 320, true, true},    {33, 49, 322, false, true},   {70, 95, 34, false, false},
    {41, 1000, 700, false, true}, {300, 33, 1001, true, false}, {1031, 47, 644, false, false},
    {577, 800, 333, true, false}, {39, 34, 2050, true, true}};

// A part of a larger matrix, so that its rows are not contiguous.
at::Tensor random_bf16(int64_t rows, int64_t width, bool transposed) {
  if (transposed) return random_bf16(width, rows, false).t();
  return at::randn({rows, width + 6}, at::kDouble).to(at::kBFloat16).narrow(1, 4, width);
}

class OwnProduct : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::has_bf16_product())
      GTEST_SKIP() << "this processor has no AVX512-BF16, or has AMX";
    at::manual_seed(5);
  }
  ~OwnProduct() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).norm().item<double>() / expected.norm().item<double>();
}

TEST_F(OwnProduct, EqualsFloat64) {
  for (const ProductCase& c : kProductCases) {
    const at::Tensor a = random_bf16(c.rows, c.depth, c.a_transposed);
    const at::Tensor b = random_bf16(c.depth, c.width, c.b_transposed);
    const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const at::Tensor narrow = at::empty({c.rows, c.width}, at::kBFloat16);
    const at::Tensor wide = at::full({c.rows, c.width}, NAN, at::kFloat);
    ASSERT_TRUE(own_product(narrow, a, b)) << c.rows;
    ASSERT_TRUE(own_product(wide, a, b)) << c.rows;
    EXPECT_LE(error_of(narrow, expected), 2.5e-3) << c.rows;
    EXPECT_LE(error_of(wide, expected), 1e-6) << c.rows;
    EXPECT_TRUE(narrow.equal(wide.to(at::kBFloat16))) << c.rows;
    ASSERT_TRUE(own_product(wide, a, b, true)) << c.rows;
    EXPECT_LE(error_of(wide, 2 * expected), 1e-6) << c.rows;
  }
}

TEST_F(OwnProduct, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const ProductCase& c : kProductCases) {
    const at::Tensor a = random_bf16(c.rows, c.depth, c.a_transposed);
    const at::Tensor b = random_bf16(c.depth, c.width, c.b_transposed);
    std::vector<at::Tensor> results;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      results.push_back(at::empty({c.rows, c.width}, at::kFloat));
      ASSERT_TRUE(own_product(results.back(), a, b));
      EXPECT_TRUE(results.back().equal(results.front())) << c.rows;
    }
  }
}

TEST_F(OwnProduct, WritesNothingBesideTheResult) {
  for (const ProductCase& c : kProductCases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor around = at::full({c.rows + 2, c.width + 9}, 7, dtype);
      const at::Tensor out = around.narrow(0, 1, c.rows).narrow(1, 3, c.width);
      ASSERT_TRUE(own_product(out, random_bf16(c.rows, c.depth, c.a_transposed),
                              random_bf16(c.depth, c.width, c.b_transposed)));
      out.fill_(7);
      EXPECT_TRUE(around.eq(7).all().item<bool>()) << c.rows;
    }
  }
}

// A padding zero times a NaN beside the factors would be NaN.
TEST_F(OwnProduct, ReadsNothingBesideItsFactors) {
  for (const ProductCase& c : kProductCases) {
    const auto among_nan = [](int64_t rows, int64_t width, bool transposed) {
      const at::Tensor around = at::full(
          {(transposed ? width : rows) + 2, (transposed ? rows : width) + 6}, NAN, at::kBFloat16);
      const at::Tensor inner =
          around.narrow(0, 1, around.size(0) - 2).narrow(1, 4, around.size(1) - 6).fill_(1);
      return transposed ? inner.t() : inner;
    };
    const at::Tensor out = at::empty({c.rows, c.width}, at::kFloat);
    ASSERT_TRUE(own_product(out, among_nan(c.rows, c.depth, c.a_transposed),
                            among_nan(c.depth, c.width, c.b_transposed)));
    EXPECT_TRUE(out.eq(static_cast<double>(c.depth)).all().item<bool>()) << c.rows;
  }
}

TEST_F(OwnProduct, DeclinesOtherProducts) {
  const at::Tensor x = random_bf16(64, 64, false);
  EXPECT_FALSE(has_own_product(x.to(at::kFloat), x));
  EXPECT_FALSE(has_own_product(x.narrow(1, 0, 33), x.narrow(0, 0, 33)));  // an odd sum
  EXPECT_FALSE(has_own_product(x.narrow(0, 0, 8), x));
  EXPECT_FALSE(own_product(at::empty({64, 64}, at::kDouble), x, x));
  EXPECT_FALSE(own_product(at::empty({64, 64}, at::kBFloat16), x, x, true));
}

// A weight's gradients are summed in float32 without intermediate rounding.
TEST_F(OwnProduct, AddsToAGradientInFloat32) {
  Weight weight;
  weight.value = random_bf16(64, 48, false);
  weight.gradient = at::full({64, 48}, NAN, at::kFloat);
  weight.clear();
  at::Tensor expected = at::zeros({64, 48}, at::kDouble);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor a = random_bf16(77, 64, false), b = random_bf16(77, 48, false);
    weight.add_product(a, b);
    expected += at::mm(a.t().to(at::kDouble), b.to(at::kDouble));
  }
  EXPECT_LE(error_of(weight.gradient, expected), 1e-6);
  const at::Tensor a = random_bf16(77, 64, false), b = random_bf16(77, 48, false);
  weight.add_product(a, b, 0.5);
  expected += at::mm(a.t().to(at::kDouble), b.to(at::kDouble)) * 0.5;
  EXPECT_LE(error_of(weight.gradient, expected), 2.5e-3) << "with a scale, as an adapter's";
}

TEST_F(OwnProduct, ALinearLayerHasItsBias) {
  const at::Tensor x = random_bf16(80, 64, false), w = random_bf16(48, 64, false);
  const at::Tensor bias = at::randn({48}, at::kDouble).to(at::kBFloat16);
  ASSERT_TRUE(has_own_product(x, w.t()));
  const at::Tensor expected =
      at::linear(x.to(at::kDouble), w.to(at::kDouble), bias.to(at::kDouble));
  EXPECT_LE(error_of(multiply_linear(x, w, bias), expected), 5e-3);
}

// LibTorch multiplies some of the addends: an adapter's, a narrow head's.
TEST_F(OwnProduct, SumsMixWithLibTorchsProducts) {
  at::Tensor sum;
  at::Tensor expected = at::zeros({64, 48}, at::kDouble);
  for (const int64_t depth : {96, 8, 33, 64}) {
    const at::Tensor a = random_bf16(64, depth, false), b = random_bf16(depth, 48, false);
    add_multiplied(sum, a, b);
    expected += at::mm(a.to(at::kDouble), b.to(at::kDouble));
  }
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_LE(error_of(sum, expected), 2.5e-3);
}

}  // namespace
}  // namespace xffl::llama
