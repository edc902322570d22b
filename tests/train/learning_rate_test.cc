#include <gtest/gtest.h>

#include <cmath>

#include "training_loop.h"

namespace xffl::train {
namespace {

job::TrainingSpec training(job::ScheduleKind kind, int64_t warmup, int64_t total,
                           double min_ratio) {
  job::TrainingSpec spec;
  spec.learning_rate = 2.0;
  spec.schedule.kind = kind;
  spec.schedule.warmup_steps = warmup;
  spec.schedule.total_steps = total;
  spec.schedule.min_ratio = min_ratio;
  return spec;
}

TEST(LearningRate, WarmsUpFromZero) {
  for (const auto kind :
       {job::ScheduleKind::kConstant, job::ScheduleKind::kLinear, job::ScheduleKind::kCosine}) {
    const auto spec = training(kind, 4, 20, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 0), 0.0);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 1), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 3), 1.5);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 4), 2.0);
  }
}

TEST(LearningRate, FollowsItsKindByHand) {
  const auto linear = training(job::ScheduleKind::kLinear, 0, 10, 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 0), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 5), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 10), 0.0);
  const auto floor = training(job::ScheduleKind::kLinear, 2, 12, 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(floor, 7), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(floor, 99), 1.0);
  const auto cosine = training(job::ScheduleKind::kCosine, 10, 110, 0.1);
  EXPECT_NEAR(learning_rate(cosine, 60), 2 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 35), 2 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5))), 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 110), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(training(job::ScheduleKind::kConstant, 0, 10, 0), 9), 2.0);
}

TEST(LearningRate, WsdFallsInTheLastShareOfTheSteps) {
  auto wsd = training(job::ScheduleKind::kWsd, 4, 100, 0.1);
  wsd.schedule.decay_ratio = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 80), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 90), 2 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 100), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 101), 0.2);
  wsd.schedule.decay_ratio = 1.0;  // the whole course after the warm-up
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 52), 2 * (0.1 + 0.9 * 0.5));
  wsd.schedule.decay_ratio = 0.0;
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 99), 2.0);
}

TEST(LearningRate, WithoutTotalStepsItEndsWithTheJob) {
  auto spec = training(job::ScheduleKind::kLinear, 0, 0, 0);
  spec.first_step = 10;
  spec.steps = 30;
  EXPECT_DOUBLE_EQ(learning_rate(spec, 20), 1.0);
}

}  // namespace
}  // namespace xffl::train
