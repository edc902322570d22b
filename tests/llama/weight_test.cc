#include "xffl/llama/weight.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace xffl::llama {
namespace {

// A gradient in 16 bits is rounded once: for a product, and for a row that repeats 1000 times. Sums
// in bfloat16 would stop at 256.
TEST(Weight, GradientsInBf16AreRoundedOnce) {
  at::manual_seed(9);
  const at::Tensor a = at::randn({64, 24}).to(at::kBFloat16),
                   b = at::randn({64, 40}).to(at::kBFloat16);
  Weight weight;
  weight.gradient = at::full({24, 40}, NAN, at::kBFloat16);
  weight.add_product(a, b, 0.5);
  const at::Tensor want = at::mm(a.to(at::kDouble).t(), b.to(at::kDouble)) * 0.5;
  EXPECT_LT(
      (weight.gradient.to(at::kDouble) - want).abs().div(want.abs() + 0.1).max().item<double>(),
      1.0 / 128);
  Weight rows;
  rows.gradient = at::full({5, 8}, NAN, at::kBFloat16);
  rows.add_rows(at::cat({at::full({1000}, 3, at::kLong), at::full({3}, 1, at::kLong)}),
                at::ones({1003, 8}, at::kBFloat16));
  EXPECT_TRUE(rows.gradient[3].eq(1000).all().item<bool>()) << rows.gradient;
  EXPECT_TRUE(rows.gradient[1].eq(3).all().item<bool>());
  EXPECT_TRUE(rows.gradient[0].eq(0).all().item<bool>());
  rows.add_rows(at::full({4}, 1, at::kLong), at::ones({4, 8}, at::kBFloat16));
  EXPECT_TRUE(rows.gradient[1].eq(7).all().item<bool>()) << "beside what was there";
}

}  // namespace
}  // namespace xffl::llama
