#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <thread>

#include "metrics.h"

namespace xffl::train {
namespace {

void spend(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(PhaseClock, SumsTheTimesOfAPhase) {
  PhaseClock clock(at::kCPU);
  clock.enter(StepPhase::kForward);
  spend(20);
  clock.enter(StepPhase::kOther);
  spend(200);
  clock.enter(StepPhase::kForward);
  spend(20);
  clock.enter(StepPhase::kHead);
  clock.enter(StepPhase::kOther);
  const PhaseSeconds seconds = clock.read();
  EXPECT_GE(seconds[StepPhase::kForward], 0.040);
  EXPECT_LT(seconds[StepPhase::kForward], 0.2) << "time outside of phases is not counted";
  EXPECT_GE(seconds[StepPhase::kHead], 0);
  EXPECT_EQ(seconds[StepPhase::kBackward] + seconds[StepPhase::kNorm] + seconds[StepPhase::kAdamw],
            0);
}

TEST(PhaseClock, AnOpenPhaseIsReadAfterItsEnd) {
  PhaseClock clock(at::kCPU);
  EXPECT_EQ(clock.read()[StepPhase::kAdamw], 0);
  clock.enter(StepPhase::kAdamw);
  spend(10);
  EXPECT_EQ(clock.read()[StepPhase::kAdamw], 0);
  clock.enter(StepPhase::kAdamw);
  clock.enter(StepPhase::kOther);
  EXPECT_GE(clock.read()[StepPhase::kAdamw], 0.010);
  EXPECT_EQ(clock.read()[StepPhase::kAdamw], 0) << "read once";
}

}  // namespace
}  // namespace xffl::train
