// The experiment's settings on their way to the state machine, the quorum of a round,
// cancellations, and a lack of memory.
#include "xffl/facility/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "fake_services.h"
#include "simulation.h"
#include "support/forwarding_scheduler.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/file.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::ElementsAre;

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

// Job 7 appears a settle time after `since`.
class LateScheduler final : public test::ForwardingScheduler {
 public:
  explicit LateScheduler(test::FakeServices& fake)
      : ForwardingScheduler(std::make_shared<test::FakeScheduler>(fake.cluster)),
        clock_(fake.clock) {}

  std::vector<JobId> find(const submit::JobRequest&, std::stop_token) override {
    if (clock_.elapsed() - since < settle_time()) return {};
    return {JobId("7")};
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token) override {
    cancelled.push_back(job.id);
  }
  milliseconds settle_time() const override { return milliseconds(10'000); }

  std::chrono::nanoseconds since{0};
  std::vector<JobId> cancelled;

 private:
  const test::FakeClock& clock_;
};

// A run whose only facility got a submission without an answer.
struct LostSubmission {
  LostSubmission() {
    fake.services.scheduler = [this](const auto&, auto) { return scheduler; };
    history::RoundPlanned planned;
    planned.facilities = {alba};
    history.record({.round = 1}, planned);
    history.record(attempt, history::AttemptOpened{.nonce = std::string(32, '0')});
    history::SubmitIntended intended;
    intended.job_name = "xffl-alba";
    history.record(attempt, intended);
    context.first_submissions.note(1, fake.clock.monotonic());
  }

  const FacilityName alba{"alba"};
  const history::EventScope attempt{.round = 1, .facility = alba, .attempt = 1};
  const test::TempDir dir;
  const history::RunFolder folder{dir.path(), RunName("0001")};
  const config::Experiment experiment = [this] {
    make_dirs(folder.path());
    config::Experiment made;
    made.policy.on_missing = config::OnMissing::kSkip;
    made.policy.deadline = hours(1);
    made.facilities.emplace_back().name = alba;
    return made;
  }();
  const plan::RoundPlan round = [this] {
    plan::RoundPlan made;
    made.facilities.push_back({.facility = alba,
                               .folder = RemotePath("/w"),
                               .model_folder = RemotePath("/w/models/model"),
                               .round_folder = RemotePath("/w/r0001")});
    return made;
  }();
  test::FakeServices fake;
  const std::shared_ptr<LateScheduler> scheduler = std::make_shared<LateScheduler>(fake);
  const Observer none;
  history::RunHistory history{folder.journal()};
  history::StatusFile live{folder.live(), fake.clock};
  Context context{experiment, folder, fake.services, none, history, live, {}};
};

// Each cancellation of an earlier round comes after the deadline of that round.
TEST(FacilityDriver, AJobOfALostSubmissionIsWaitedForAfterItsDeadline) {
  LostSubmission run;
  run.history.record(run.attempt, history::CancelIntended{});
  history::AttemptFailed failed;
  failed.reason = "the answer to the submission was lost";
  run.history.record(run.attempt, failed);
  run.fake.clock.advance(hours(2));
  run.scheduler->since = run.fake.clock.elapsed();
  FacilityDriver(run.context, run.round, run.round.facilities.front()).repeat_cancel({});
  EXPECT_THAT(run.scheduler->cancelled, ElementsAre(JobId("7")));
  EXPECT_FALSE(run.history.facility(1, run.alba).current()->cancel_intended);
}

// Another exception would end the run of all facilities.
TEST(FacilityDriver, ALackOfMemoryIsRetried) {
  LostSubmission run;
  std::stop_source stop;
  int sleeps = 0;
  run.fake.clock.on_sleep = [&] {
    if (++sleeps == 1) throw std::bad_alloc();
    stop.request_stop();
  };
  FacilityDriver driver(run.context, run.round, run.round.facilities.front());
  EXPECT_EQ(test::kind_of([&] { driver.run(stop.get_token()); }), ErrorKind::kCancelled);
  EXPECT_EQ(sleeps, 2);
}

}  // namespace
}  // namespace xffl::facility
