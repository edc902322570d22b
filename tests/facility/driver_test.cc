// The experiment's settings on their way to the state machine, and the quorum of a round.
#include "xffl/facility/driver.h"

#include <gtest/gtest.h>

#include "fake_services.h"
#include "simulation.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"

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

// The update of a facility that leaves later stays in the mean: the others have as much time as
// before.
TEST(QuorumNow, CountsAFacilityThatLeftAfterItsUpdate) {
  const FacilityName alba("alba"), brno("brno");
  const test::TempDir dir;
  const history::RunFolder folder{dir.path(), RunName("0001")};
  make_dirs(folder.path());
  config::Experiment experiment;
  experiment.policy.on_missing = config::OnMissing::kSkip;
  experiment.policy.quorum = 2;
  plan::RoundPlan round;
  round.facilities.resize(2);
  round.facilities[0].facility = alba;
  round.facilities[1].facility = brno;
  history::RoundPlanned planned;
  planned.facilities = {alba, brno};
  test::FakeServices fake;
  const Observer none;
  history::RunHistory history(folder.journal());
  history::StatusFile live(folder.live(), fake.clock);
  const Context context{experiment, folder, fake.services, none, history, live, {}};
  history.record({.round = 1}, planned);
  history.record({.round = 1, .facility = alba, .attempt = 1},
                 history::AttemptOpened{.nonce = std::string(32, '0')});
  history.record({.round = 1, .facility = alba, .attempt = 1},
                 test::simulated_update("alba", 1, 1));
  EXPECT_EQ(quorum_now(context, round), 2);
  history.record({.facility = alba}, history::FacilityLeft{.reason = "spent", .now = true});
  EXPECT_EQ(quorum_now(context, round), 2);
  history.record({.facility = brno}, history::FacilityLeft{.reason = "spent", .now = true});
  EXPECT_EQ(quorum_now(context, round), 1) << "brno has no update";
}

}  // namespace
}  // namespace xffl::facility
