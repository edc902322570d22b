// Reference: torch.amp.GradScaler with its defaults (65536; halved; doubled after 2000 good steps).
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace xffl::train
