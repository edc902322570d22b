// The end of a round: policy.deadline, and policy.quorum_grace after the quorum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using test::MachineFixture;
using testing::Contains;
using testing::HasSubstr;

FacilityPolicy quorum_policy() {
  FacilityPolicy policy = MachineFixture::usual_policy();
  policy.on_missing = config::OnMissing::kSkip;
  policy.quorum = 2;
  policy.quorum_grace = minutes(30);
  policy.deadline = hours(24);
  return policy;
}

TEST(RoundEnd, IsTheEarlierOfDeadlineAndQuorumGrace) {
  const FacilityPolicy policy = quorum_policy();
  Now now;
  EXPECT_FALSE(deadline(policy, now));
  now.since_first_submission = hours(1);
  ASSERT_TRUE(deadline(policy, now));
  EXPECT_EQ(deadline(policy, now)->left, hours(23));
  EXPECT_FALSE(deadline(policy, now)->after_quorum);
  now.since_quorum = minutes(10);
  EXPECT_EQ(deadline(policy, now)->left, minutes(20));
  EXPECT_TRUE(deadline(policy, now)->after_quorum);
  EXPECT_TRUE(deadline(policy, now)->ends_attempts);
  now.since_first_submission = hours(23) + minutes(50);
  EXPECT_EQ(deadline(policy, now)->left, minutes(10)) << "the deadline comes first";
  EXPECT_FALSE(deadline(policy, now)->after_quorum);
  now.since_first_submission.reset();
  now.since_quorum = minutes(30);
  EXPECT_TRUE(deadline(policy, now)->is_up()) << "a restarted round without a submission";
}

TEST(RoundEnd, QuorumGraceNeedsSkipAQuorumAndATime) {
  Now now;
  now.since_quorum = hours(100);
  FacilityPolicy policy = quorum_policy();
  policy.quorum_grace = seconds(0);
  EXPECT_FALSE(deadline(policy, now));
  policy = quorum_policy();
  policy.quorum = 0;
  EXPECT_FALSE(deadline(policy, now));
  for (const auto rule : {config::OnMissing::kWait, config::OnMissing::kFail}) {
    policy = quorum_policy();
    policy.on_missing = rule;
    EXPECT_FALSE(deadline(policy, now));
  }
}

// Answers with `event` until the machine finishes; returns the time that it took.
Nanoseconds time_to_finish(MachineFixture& fixture, const Event& event) {
  const Nanoseconds began = fixture.now.time;
  for (int steps = 0; steps < 10'000 && !fixture.action<Finish>(); ++steps) {
    if (const auto* sleep = fixture.action<Sleep>())
      fixture.give(TimerFired{}, sleep->duration);
    else
      fixture.give(event);
  }
  EXPECT_TRUE(fixture.action<Finish>());
  return fixture.now.time - began;
}

TEST(RoundEnd, AnUnreachableFacilityEndsAfterTheQuorumGrace) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.now.since_quorum = seconds(0);
  fixture.give(Resumed{});
  const Nanoseconds took = time_to_finish(fixture, Unreachable{"no route"});
  EXPECT_GE(took, minutes(30) - seconds(5));
  EXPECT_LE(took, minutes(30) + seconds(5));
  ASSERT_TRUE(fixture.last.machine.known.missing);
  EXPECT_THAT(*fixture.last.machine.known.missing,
              HasSubstr("1800 s after its quorum (policy.quorum_grace): no route"));
}

TEST(RoundEnd, AFacilityWithoutCredentialEndsAfterTheQuorumGrace) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.now.since_quorum = seconds(0);
  fixture.to_the_job();
  const Nanoseconds took = time_to_finish(fixture, AuthRequired{"the certificate"});
  EXPECT_LE(took, minutes(30) + seconds(10));
  EXPECT_THAT(fixture.kinds, Contains("facility_missing"));
}

TEST(RoundEnd, APausedFacilityEndsAfterTheQuorumGrace) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.now.since_quorum = seconds(0);
  fixture.now.paused = "maintenance";
  fixture.give(Resumed{});
  const Nanoseconds took = time_to_finish(fixture, Unreachable{"not asked"});
  EXPECT_LE(took, minutes(30) + seconds(5));
  EXPECT_EQ(fixture.kinds, std::vector<std::string>{"facility_missing"});
}

// Job 7 is queued at the end of the quorum's grace time.
void to_the_search_at_the_end(MachineFixture& fixture) {
  fixture.policy = quorum_policy();
  fixture.to_the_job();
  fixture.now.since_quorum = minutes(30);
  ASSERT_TRUE(fixture.action<Poll>());
  const submit::JobStatus pending{.state = submit::JobState::kPending, .native = "PENDING"};
  fixture.give(Polled{.reported = false, .status = pending});
  ASSERT_TRUE(fixture.action<Fence>());
  EXPECT_THAT(fixture.kinds, Contains("cancel_intended"));
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<FindJobs>());
}

// The job that waits in the queue is fenced and cancelled, as at a deadline.
TEST(RoundEnd, AQueuedJobIsClosedAfterTheQuorumGrace) {
  MachineFixture fixture;
  ASSERT_NO_FATAL_FAILURE(to_the_search_at_the_end(fixture));
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<CancelJob>());
  fixture.give(Completed{});
  if (fixture.action<CancelJob>()) fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_THAT(fixture.kinds, Contains("cancel_confirmed"));
  EXPECT_THAT(fixture.kinds, Contains("facility_missing"));
}

// The journal has the job's id, whatever the scheduler's search by name shows.
TEST(RoundEnd, AJobThatTheSearchDoesNotShowIsCancelled) {
  MachineFixture fixture;
  ASSERT_NO_FATAL_FAILURE(to_the_search_at_the_end(fixture));
  fixture.give(Found{});
  ASSERT_TRUE(fixture.action<CancelJob>());
  EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("7"));
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_THAT(fixture.kinds, Contains("cancel_confirmed"));
}

TEST(RoundEnd, EveryJobOfTheAttemptIsCancelled) {
  MachineFixture fixture;
  ASSERT_NO_FATAL_FAILURE(to_the_search_at_the_end(fixture));
  fixture.give(Found{{JobId("8"), JobId("9")}});
  for (const char* job : {"8", "9", "7"}) {
    ASSERT_TRUE(fixture.action<CancelJob>()) << job;
    EXPECT_EQ(fixture.action<CancelJob>()->job, JobId(job));
    fixture.give(Completed{});
  }
  EXPECT_TRUE(fixture.action<Finish>());
}

// The job may have begun: the fence alone does not end it.
TEST(RoundEnd, TheJobOfALostAnswerIsCancelledAtTheDeadline) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  fixture.now.since_first_submission = hours(24);
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Fence>());
  EXPECT_THAT(fixture.kinds, Contains("cancel_intended")) << "a later round repeats it";
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<CancelJob>());
  EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("7"));
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
}

// A report that the last poll sees is fetched: nothing that was trained is thrown away.
TEST(RoundEnd, AReportAtTheEndOfTheRoundIsFetched) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.to_the_job();
  fixture.now.since_quorum = minutes(31);
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Polled{.reported = true, .status = {}});
  EXPECT_TRUE(fixture.action<FetchUpdate>());
}

// `xffl leave --now` ends the facility's part under every on_missing.
TEST(RoundEnd, AFacilityThatLeavesClosesItsRunningJob) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.now.left = "its allocation is spent";
  const submit::JobStatus runs{.state = submit::JobState::kRunning, .native = "RUNNING"};
  fixture.give(Polled{.reported = false, .status = runs});
  EXPECT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  fixture.give(Found{{JobId("7")}});
  while (fixture.action<CancelJob>()) fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.last.machine.known.missing, "it left the run: its allocation is spent");
}

TEST(RoundEnd, AFacilityThatLeavesKeepsItsReportedUpdate) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.now.left = "its allocation is spent";
  fixture.give(Polled{.reported = true, .status = {}});
  ASSERT_TRUE(fixture.action<FetchUpdate>());
  history::UpdateAccepted update;
  update.report.key.facility = "alba";
  fixture.give(Fetched{update});
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.kinds.back(), "update_accepted");
}

TEST(RoundEnd, SleepsEndWithTheQuorumGrace) {
  MachineFixture fixture;
  fixture.policy = quorum_policy();
  fixture.to_the_job();
  fixture.now.since_quorum = minutes(30) - seconds(2);
  fixture.give(Unreachable{"down"}, seconds(0));
  ASSERT_TRUE(fixture.action<Sleep>());
  EXPECT_LE(fixture.action<Sleep>()->duration, seconds(2));
}

}  // namespace
}  // namespace xffl::facility
