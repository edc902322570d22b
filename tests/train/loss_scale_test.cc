// Reference: torch.amp.GradScaler with its defaults (65536; halved; doubled after 2000 good steps).
#include <gtest/gtest.h>
#include <torch/types.h>

#include "trainer.h"

namespace xffl::train {
namespace {

void record(LossScale& scale, int count, bool finite) {
  for (int i = 0; i < count; ++i) scale.record(finite);
}

TEST(LossScale, IsHalvedWhenAGradientOverflows) {
  LossScale scale(job::FloatType::kFloat16);
  EXPECT_EQ(scale.value(), 65536);
  scale.record(false);
  EXPECT_EQ(scale.value(), 32768);
  record(scale, 2, false);
  EXPECT_EQ(scale.value(), 8192);
}

TEST(LossScale, IsDoubledAfter2000GoodSteps) {
  LossScale scale(job::FloatType::kFloat16);
  record(scale, 1999, true);
  EXPECT_EQ(scale.value(), 65536);
  scale.record(true);
  EXPECT_EQ(scale.value(), 131072);
  record(scale, 1999, true);
  scale.record(false);
  EXPECT_EQ(scale.value(), 65536);
  record(scale, 1999, true);
  EXPECT_EQ(scale.value(), 65536) << "counted anew";
  scale.record(true);
  EXPECT_EQ(scale.value(), 131072);
}

TEST(LossScale, HasAFloorBelowWhichAnOverflowIsFatal) {
  LossScale scale(job::FloatType::kFloat16);
  for (int i = 0; i < 26; ++i) {
    EXPECT_TRUE(scale.can_skip()) << i;
    scale.record(false);
  }
  EXPECT_EQ(scale.value(), 1.0 / 1024);
  EXPECT_FALSE(scale.can_skip());
}

TEST(LossScale, StateIsRestored) {
  LossScale scale(job::FloatType::kFloat16), other(job::FloatType::kFloat16);
  scale.record(false);
  record(scale, 1999, true);
  other.set_state(scale.state());
  EXPECT_EQ(other.value(), 32768);
  other.record(true);
  EXPECT_EQ(other.value(), 65536);
}

TEST(LossScale, IsOneInOtherPrecisions) {
  for (const auto precision : {job::FloatType::kFloat32, job::FloatType::kBfloat16}) {
    LossScale scale(precision);
    scale.record(false);
    EXPECT_EQ(scale.value(), 1);
    EXPECT_FALSE(scale.can_skip());
  }
}

// A unit's elements are converted in pieces of 4 Mi.
TEST(Proximal, PullsEachElementOfALargeUnitToItsInput) {
  constexpr int64_t kElements = (1 << 22) + 1000;
  shard::FlatParameters flat({{{kElements}, 0, true}}, {});
  shard::UnitState& state = flat.states().at(0);
  const at::Tensor places = at::arange(kElements, at::kFloat);
  state.master_S.narrow(0, 0, kElements).copy_(places);
  Proximal proximal(flat, 0.5);
  state.master_S.narrow(0, 0, kElements).copy_(places * 3);
  state.gradient_S.zero_();
  proximal.add_gradients(4);
  // 4 * 0.5 * (3 - 1) times the place; multiples of 4 up to 2^25 are exact.
  EXPECT_TRUE(state.gradient_S.narrow(0, 0, kElements).equal(places * 4));
}

}  // namespace
}  // namespace xffl::train
