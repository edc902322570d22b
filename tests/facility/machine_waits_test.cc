// Decisions of the state machine while it waits for a user or for a queue, or continues after a
// kill.
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
using testing::Not;

// --- Waits for a user, and for other facilities ---

// Answers every action but a sleep so, for as long.
void answer_for(MachineFixture& fixture, Nanoseconds time, const Event& event) {
  const Nanoseconds until = fixture.now.time + time;
  for (int actions = 0; fixture.now.time < until; ++actions) {
    ASSERT_LT(actions, 2'000'000);
    ASSERT_FALSE(fixture.action<Finish>()) << fixture.last.machine.known.missing.value_or("");
    if (const auto* sleep = fixture.action<Sleep>())
      fixture.give(TimerFired{}, sleep->duration);
    else
      fixture.give(event);
  }
}

TEST(FacilityMachineFaults, AnExpiredCertificateAfterAnOutageIsNoOutage) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.give(Unreachable{"down"});
  answer_for(fixture, hours(24 * 30), AuthRequired{"the certificate"});
  fixture.give(Unreachable{"down again"});
  fixture.sleep_if_asked();
  EXPECT_TRUE(fixture.action<Poll>());
  EXPECT_THAT(fixture.kinds, Not(Contains("facility_missing")));
}

TEST(FacilityMachineFaults, AnExpiredCertificateAfterAnUnknownSubmissionIsNoOutage) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  for (int doubt = 0; doubt < 2; ++doubt) {
    ASSERT_TRUE(fixture.action<Submit>());
    fixture.give(SubmitUnknown{"timed out"});
    fixture.sleep_if_asked();
    for (int look = 0; look < 2; ++look) {
      fixture.give(Found{});
      fixture.sleep_if_asked();
    }
  }
  ASSERT_TRUE(fixture.action<Submit>());
  answer_for(fixture, hours(24 * 30), AuthRequired{"the certificate"});
  EXPECT_THAT(fixture.kinds, Not(Contains("facility_missing")));
}

// Its limits are those of a queue, not of a link.
TEST(FacilityMachineFaults, ADeferredSubmissionIsNoOutage) {
  MachineFixture fixture;
  fixture.policy.max_outage = seconds(300);
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  answer_for(fixture, hours(24 * 30), SubmitDeferred{"QOSMaxSubmitJobPerUserLimit"});
  fixture.give(SubmitDeferred{"QOSMaxSubmitJobPerUserLimit"});
  ASSERT_TRUE(fixture.action<Sleep>());
  EXPECT_GT(fixture.action<Sleep>()->duration, minutes(7)) << "asked ever less often";
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Submit>());
  fixture.give(Submitted{JobId("7")});
  EXPECT_TRUE(fixture.action<Poll>());
}

// The third submission comes after two lost answers.
void lose_two_answers(MachineFixture& fixture) {
  fixture.policy.max_outage = seconds(300);
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  for (int lost = 0; lost < 2; ++lost) {
    ASSERT_TRUE(fixture.action<Submit>());
    fixture.give(SubmitUnknown{"the connection was lost"});
    for (int search = 0; search < 2; ++search) {
      fixture.sleep_if_asked();
      ASSERT_TRUE(fixture.action<FindJobs>());
      fixture.give(Found{});
    }
    fixture.sleep_if_asked();
  }
}

// The scheduler answers again after two lost answers.
TEST(FacilityMachineFaults, ADeferralAfterLostAnswersIsNoOutage) {
  MachineFixture fixture;
  ASSERT_NO_FATAL_FAILURE(lose_two_answers(fixture));
  answer_for(fixture, hours(24 * 30), SubmitDeferred{"QOSMaxSubmitJobPerUserLimit"});
  EXPECT_THAT(fixture.kinds, Not(Contains("facility_missing")));
}

// The job runs for longer than the longest outage.
TEST(FacilityMachineFaults, AJobAfterLostAnswersIsNoOutage) {
  MachineFixture fixture;
  ASSERT_NO_FATAL_FAILURE(lose_two_answers(fixture));
  ASSERT_TRUE(fixture.action<Submit>());
  fixture.give(Submitted{JobId("7")});
  answer_for(
      fixture, hours(24),
      Polled{.reported = false, .status = submit::JobStatus{.state = submit::JobState::kRunning}});
  EXPECT_TRUE(std::holds_alternative<Polling>(fixture.last.machine.phase));
  EXPECT_THAT(fixture.kinds, Not(Contains("attempt_failed")));
}

// --- After the kill of a coordinator ---

TEST(FacilityMachineFaults, ACancellationByTheRunDoesNotPauseTheFacility) {
  MachineFixture before;
  before.policy.on_missing = config::OnMissing::kSkip;
  before.policy.deadline = hours(24);
  before.to_the_job();
  before.now.since_first_submission = hours(25);
  before.give(Polled{.reported = false, .status = {}});
  ASSERT_EQ(before.kinds.back(), "cancel_intended");
  MachineFixture fixture;
  fixture.last.machine.known = before.last.machine.known;
  fixture.give(Resumed{});
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  for (int i = 0; i < 20 && !fixture.action<Push>(); ++i) {
    if (fixture.action<Sleep>())
      fixture.sleep_if_asked();
    else if (fixture.action<Poll>())
      fixture.give(Polled{.reported = false, .status = cancelled});
    else if (fixture.action<FindJobs>())
      fixture.give(Found{{JobId("7")}});
    else
      fixture.give(Completed{});
  }
  EXPECT_TRUE(fixture.action<Push>());
  EXPECT_THAT(fixture.kinds, Not(Contains("facility_paused")));
  EXPECT_THAT(fixture.kinds, Contains("cancel_confirmed"));
  const history::Attempt& ended = fixture.last.machine.known.attempts.front();
  EXPECT_THAT(ended.failure.value_or(""), HasSubstr("cancellation had begun"));
  EXPECT_FALSE(ended.counts_as_attempt);
}

// The scheduler shows a cancelled duplicate again after it has forgotten the polled job.
TEST(FacilityMachineFaults, ACancelledDuplicateDoesNotPauseTheFacility) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  fixture.sleep_if_asked();
  fixture.give(Found{{JobId("7"), JobId("8")}});
  fixture.give(Completed{});
  MachineFixture later;  // after a kill
  later.last.machine.known = fixture.last.machine.known;
  later.give(Resumed{});
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  for (int i = 0; i < 40 && !later.action<Push>(); ++i) {
    if (later.action<Sleep>())
      later.sleep_if_asked();
    else if (const auto* look = later.action<Poll>())
      later.give(Polled{.reported = false,
                        .status = look->job == JobId("8") ? cancelled : submit::JobStatus{}},
                 minutes(1));
    else if (later.action<FindJobs>())
      later.give(Found{{JobId("8")}});
    else
      later.give(Completed{});
  }
  EXPECT_TRUE(later.action<Push>());
  EXPECT_THAT(later.kinds, Not(Contains("facility_paused")));
}

// --- A facility that a user paused ---

// Searches that find no job; none leads to a submission within `time`.
void expect_no_submission(MachineFixture& fixture, Nanoseconds time) {
  const Nanoseconds until = fixture.now.time + time;
  for (int actions = 0; fixture.now.time < until; ++actions) {
    ASSERT_LT(actions, 200'000);
    ASSERT_FALSE(fixture.action<Submit>())
        << "at " << fixture.now.time.count() / 1'000'000'000 << " s";
    if (const auto* sleep = fixture.action<Sleep>()) {
      ASSERT_GE(sleep->duration, seconds(1));
      fixture.give(TimerFired{}, sleep->duration);
    } else {
      ASSERT_TRUE(fixture.action<FindJobs>());
      fixture.give(Found{});
    }
  }
}

// Afterwards a submission, at the latest after another look.
void expect_submission(MachineFixture& fixture) {
  fixture.now.paused.reset();
  for (int i = 0; i < 4 && !fixture.action<Submit>(); ++i) {
    if (fixture.action<Sleep>())
      fixture.sleep_if_asked();
    else
      fixture.give(Found{});
  }
  EXPECT_TRUE(fixture.action<Submit>());
}

TEST(FacilityMachinePaused, ADeferredSubmissionIsHeldBack) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  ASSERT_TRUE(fixture.action<Submit>());
  fixture.now.paused = "a person";
  fixture.give(SubmitDeferred{"QOSMaxSubmitJobPerUserLimit"});
  expect_no_submission(fixture, hours(24 * 30));
  EXPECT_FALSE(fixture.last.machine.known.missing) << "it is no outage";
  expect_submission(fixture);
}

TEST(FacilityMachinePaused, AFailedPushIsNoOutage) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  ASSERT_TRUE(fixture.action<Push>());
  fixture.give(Unreachable{"down"});
  fixture.now.paused = "a person";
  expect_no_submission(fixture, hours(24 * 30));
  EXPECT_FALSE(fixture.last.machine.known.missing) << "it is no outage";
  fixture.now.paused.reset();
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Push>());
  fixture.give(Unreachable{"down again"});
  fixture.sleep_if_asked();
  EXPECT_TRUE(fixture.action<Push>());
}

TEST(FacilityMachinePaused, ASubmissionAfterAnUnknownOneIsHeldBack) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  fixture.now.paused = "a person";
  expect_no_submission(fixture, hours(24 * 30));
  EXPECT_FALSE(fixture.last.machine.known.missing);
  expect_submission(fixture);
}

TEST(FacilityMachinePaused, ASubmissionAfterARestartIsHeldBack) {
  MachineFixture before;
  before.give(Resumed{});
  before.give(Pushed{});
  MachineFixture fixture;
  fixture.last.machine.known = before.last.machine.known;
  fixture.now.paused = "a person";
  fixture.give(Resumed{});
  expect_no_submission(fixture, hours(24 * 30));
  expect_submission(fixture);
}

// A job that had been submitted all the same is seen as soon as it appears.
TEST(FacilityMachinePaused, AJobThatAppearsIsAdopted) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  fixture.now.paused = "a person";
  expect_no_submission(fixture, hours(2));
  if (const auto* sleep = fixture.action<Sleep>()) fixture.give(TimerFired{}, sleep->duration);
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{{JobId("7")}});
  EXPECT_TRUE(fixture.action<Poll>());
}

// The pause concerns submissions only.
TEST(FacilityMachinePaused, AFailedAttemptIsFencedAndRecorded) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.now.paused = "a person";
  for (int polls = 0; polls < 2; ++polls) {
    fixture.give(Polled{.status = submit::JobStatus{.state = submit::JobState::kEnded}});
    fixture.sleep_if_asked();
  }
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  fixture.give(Polled{});
  EXPECT_EQ(fixture.kinds.back(), "attempt_failed");
  EXPECT_TRUE(fixture.action<Sleep>()) << "the next attempt waits for the user";
}

// The machine retries for as long as the policy says; status shows early that it will hardly help.
TEST(Machine, RepeatedErrorsNeedTheUser) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  for (int failures = 1; failures <= 8; ++failures) {
    fixture.give(Unreachable{"the server opens no channel"});
    EXPECT_EQ(needs_user(fixture.last.machine), failures >= 5) << failures;
    EXPECT_EQ(
        describe(fixture.last.machine).starts_with("needs you: pushing, retrying: the server"),
        failures >= 5)
        << describe(fixture.last.machine);
    fixture.sleep_if_asked();
  }
  fixture.give(Pushed{});
  EXPECT_FALSE(needs_user(fixture.last.machine));
}

// A new certificate would not bring the link back.
TEST(Machine, AnOutageAfterAnExpiredCertificateIsShownAsAnOutage) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.give(AuthRequired{"the certificate"});
  EXPECT_EQ(describe(fixture.last.machine),
            "paused: authentication needed, submitted: the certificate");
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Unreachable{"no route"});
  EXPECT_EQ(describe(fixture.last.machine), "submitted, retrying: no route");
}

TEST(Machine, TheTimesOfAJobAreShown) {
  using submit::JobState;
  using submit::JobStatus;
  MachineFixture fixture;
  fixture.to_the_job();
  const auto shown = [&](const JobStatus& status) {
    fixture.give(Polled{.reported = false, .status = status});
    const std::string text = describe(fixture.last.machine);
    fixture.sleep_if_asked();
    return text;
  };
  JobStatus pending{.state = JobState::kPending, .reason = "Priority"};
  pending.starts_in = seconds(90);
  EXPECT_EQ(shown(pending), "pending (Priority), starts in 90 s");
  pending.starts_in = minutes(90);
  EXPECT_EQ(shown(pending), "pending (Priority), starts in 90 min");
  JobStatus running{.state = JobState::kRunning};
  running.ends_in = hours(36);
  EXPECT_EQ(shown(running), "running, time limit in 36 h");
}

TEST(Machine, ARepeatedlyUnknownSubmissionNeedsTheUser) {
  MachineFixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  for (int submissions = 1; submissions <= 4; ++submissions) {
    fixture.give(SubmitUnknown{"sbatch: Too many open files"});
    EXPECT_EQ(needs_user(fixture.last.machine), submissions >= 3) << submissions;
    fixture.sleep_if_asked();
    fixture.give(Found{});
    fixture.sleep_if_asked();
    fixture.give(Found{});
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<Submit>());
  }
  fixture.give(Submitted{JobId("7")});
  EXPECT_FALSE(needs_user(fixture.last.machine));
}

// on_missing: skip without a deadline in xffl.yaml.
TEST(Machine, SkipHasADeadlineWithoutOneInThePolicy) {
  FacilityPolicy policy = MachineFixture::usual_policy();
  Now now;
  now.since_first_submission = std::chrono::hours(24);
  EXPECT_FALSE(deadline(policy, now)) << "on_missing: wait";
  policy.on_missing = config::OnMissing::kFail;
  EXPECT_FALSE(deadline(policy, now)) << "on_missing: fail";
  policy.on_missing = config::OnMissing::kSkip;
  ASSERT_TRUE(deadline(policy, now));
  EXPECT_EQ(deadline(policy, now)->left, std::chrono::hours(6 * 24));
  EXPECT_TRUE(deadline(policy, now)->ends_attempts);
  policy.deadline = std::chrono::hours(25);
  EXPECT_EQ(deadline(policy, now)->left, std::chrono::hours(1));
  MachineFixture fixture;
  fixture.policy.on_missing = config::OnMissing::kSkip;
  fixture.now.since_first_submission = std::chrono::seconds(0);
  fixture.to_the_job();
  for (int i = 0; i < 200'000 && !fixture.action<Finish>(); ++i)
    if (fixture.action<Sleep>())
      fixture.sleep_if_asked();
    else if (fixture.action<Poll>())
      fixture.give(Polled{.status = submit::JobStatus{.state = submit::JobState::kHeld}});
    else if (fixture.action<FindJobs>())
      fixture.give(Found{});
    else
      fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.last.machine.known.missing.value_or("").substr(0, 35),
            "no update before the round's deadli");
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("of 604800 s"));
  EXPECT_LT(*fixture.now.since_first_submission, std::chrono::hours(7 * 24 + 1));
}

}  // namespace
}  // namespace xffl::facility
