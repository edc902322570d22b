#include "xffl/shard/flat_parameters.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

namespace xffl::shard {
namespace {

std::vector<Parameter> small_layout() {
  return {
      {{5, 7}, 0, true}, {{7}, 1, false}, {{3, 4}, 1, true}, {{70, 70}, 1, true}, {{4}, 1, false}};
}

TEST(FlatParameters, ViewsShareTheUnitsBuffer) {
  FlatParameters flat(small_layout(), {});
  ASSERT_EQ(flat.units().size(), 2u);
  for (size_t i = 0; i < flat.size(); ++i) flat.master(i).fill_(static_cast<double>(i + 1));
  const at::Tensor& unit = flat.units()[1].master_P;
  EXPECT_EQ(unit.eq(3).sum().item<int64_t>(), 12);
  EXPECT_EQ(unit.eq(4).sum().item<int64_t>(), 4900);
  EXPECT_EQ(unit.eq(2).sum().item<int64_t>(), 7);
  EXPECT_EQ(unit.ne(0).sum().item<int64_t>(), 7 + 12 + 4900 + 4);  // gaps stay zero
  EXPECT_TRUE(flat.compute(2).is_alias_of(flat.master(2)));
}

TEST(FlatParameters, DecayedParametersComeFirst) {
  FlatParameters flat(small_layout(), {});
  for (size_t i = 0; i < flat.size(); ++i) flat.master(i).fill_(static_cast<double>(i + 1));
  const FlatUnit& unit = flat.units()[1];
  const at::Tensor decayed = unit.master_P.narrow(0, 0, unit.num_decayed);
  EXPECT_EQ(decayed.eq(3).sum().item<int64_t>() + decayed.eq(4).sum().item<int64_t>(), 4912);
  EXPECT_EQ(decayed.eq(2).sum().item<int64_t>() + decayed.eq(5).sum().item<int64_t>(), 0);
}

TEST(FlatParameters, ABf16CopyFollowsTheMasters) {
  FlatParameters flat(small_layout(), {at::kCPU, at::kBFloat16, true});
  flat.master(3).fill_(1.001);
  EXPECT_EQ(flat.compute(3).scalar_type(), at::kBFloat16);
  EXPECT_EQ(flat.gradient(3).scalar_type(), at::kFloat);
  EXPECT_EQ(flat.compute(3).max().item<float>(), 0);
  flat.refresh_compute();
  EXPECT_TRUE(flat.compute(3).equal(flat.master(3).to(at::kBFloat16)));
}

TEST(FlatParameters, TheNormIsGlobalAndExact) {
  at::manual_seed(1);
  FlatParameters flat(small_layout(), {});
  double square_sum = 0;
  for (size_t i = 0; i < flat.size(); ++i) {
    flat.gradient(i).normal_(0, 3);
    square_sum += flat.gradient(i).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(flat.gradient_norm() / std::sqrt(square_sum), 1, 1e-6);
  flat.scale_gradients(0.5);
  EXPECT_NEAR(flat.gradient_norm() / std::sqrt(square_sum), 0.5, 1e-6);
  flat.gradient(4)[1].fill_(NAN);
  EXPECT_TRUE(std::isnan(flat.gradient_norm()));
}

}  // namespace
}  // namespace xffl::shard
