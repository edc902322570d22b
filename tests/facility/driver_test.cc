// The experiment's settings on their way to the state machine.
#include "xffl/facility/driver.h"

#include <gtest/gtest.h>

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(FacilityDriver, EveryPolicyReachesTheMachine) {
  config::Experiment experiment;
  experiment.policy.max_attempts = 7;
  experiment.policy.rerun_budget = 23;
  experiment.policy.on_missing = config::OnMissing::kFail;
  experiment.policy.deadline = hours(5);
  experiment.policy.poll_interval = milliseconds(1234);
  experiment.policy.max_outage = hours(11);
  const FacilityPolicy policy = facility_policy(experiment, config::Facility{}, milliseconds(321));
  EXPECT_EQ(policy.max_attempts, 7);
  EXPECT_EQ(policy.rerun_budget, 23);
  EXPECT_EQ(policy.on_missing, config::OnMissing::kFail);
  EXPECT_EQ(policy.deadline, hours(5));
  EXPECT_EQ(policy.poll_interval, milliseconds(1234));
  EXPECT_EQ(policy.max_outage, hours(11));
  EXPECT_EQ(policy.settle_time, milliseconds(321));
}

}  // namespace
}  // namespace xffl::facility
