// The limits of a facility's part of a round: attempts, budgets, queries and pauses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using submit::JobState;
using submit::JobStatus;
using test::MachineFixture;
using testing::HasSubstr;

history::Attempt failed_attempt(int number, bool counts) {
  history::Attempt attempt{.number = number, .nonce = {}};
  attempt.failure = "it failed";
  attempt.counts_as_attempt = counts;
  return attempt;
}

// A coordinator starts with these attempts on record.
MachineFixture resumed_with(std::vector<history::Attempt> attempts, int before_renewal = 0) {
  MachineFixture fixture;
  fixture.policy.max_attempts = 2;
  fixture.policy.rerun_budget = 2;
  fixture.last.machine.known.attempts = std::move(attempts);
  fixture.last.machine.known.attempts_before_renewal = before_renewal;
  fixture.give(Resumed{});
  return fixture;
}

TEST(MachineLimits, MaxAttemptsAreTheAttempts) {
  EXPECT_TRUE(resumed_with({failed_attempt(1, true)}).action<Push>());
  const MachineFixture spent = resumed_with({failed_attempt(1, true), failed_attempt(2, true)});
  EXPECT_TRUE(spent.action<Finish>());
  EXPECT_THAT(*spent.last.machine.known.missing, HasSubstr("policy.max_attempts is 2"));
}

TEST(MachineLimits, TheRerunBudgetIsForFurtherJobs) {
  std::vector<history::Attempt> lost = {failed_attempt(1, false), failed_attempt(2, false)};
  EXPECT_TRUE(resumed_with(lost).action<Push>());
  lost.push_back(failed_attempt(3, false));
  const MachineFixture spent = resumed_with(lost);
  EXPECT_TRUE(spent.action<Finish>());
  EXPECT_THAT(*spent.last.machine.known.missing, HasSubstr("policy.rerun_budget is 2"));
}

TEST(MachineLimits, ARenewedBudgetCountsLaterAttemptsOnly) {
  const std::vector<history::Attempt> two = {failed_attempt(1, true), failed_attempt(2, true)};
  EXPECT_TRUE(resumed_with(two, 2).action<Push>());
  EXPECT_TRUE(resumed_with(two, 1).action<Push>());
  EXPECT_TRUE(resumed_with(two, 0).action<Finish>());
}

TEST(MachineLimits, AnAdvancingTrainingUsesNoBudget) {
  std::vector<history::Attempt> stopped;
  for (int number = 1; number <= 9; ++number) {
    stopped.push_back(failed_attempt(number, false));
    stopped.back().steps = number;
  }
  EXPECT_TRUE(resumed_with(stopped).action<Push>());
}

TEST(MachineLimits, ATrainingThatRegainsLostStepsDoesNotAdvance) {
  std::vector<history::Attempt> attempts;
  for (const int64_t steps : {5, 3, 5, 3}) {
    attempts.push_back(failed_attempt(static_cast<int>(attempts.size()) + 1, false));
    attempts.back().steps = steps;
  }
  const MachineFixture spent = resumed_with(attempts);
  EXPECT_TRUE(spent.action<Finish>());
  EXPECT_THAT(*spent.last.machine.known.missing, HasSubstr("policy.rerun_budget is 2"));
}

TEST(MachineLimits, ASubmissionBeforeARestartGetsItsSettleTime) {
  history::Attempt open{.number = 1, .nonce = {}};
  open.pushed = open.submit_intended = true;
  MachineFixture fixture = resumed_with({open});
  ASSERT_TRUE(fixture.action<Sleep>());
  EXPECT_EQ(fixture.action<Sleep>()->duration, fixture.policy.settle_time);
  fixture.sleep_if_asked();
  EXPECT_TRUE(fixture.action<FindJobs>()) << "the job may exist";
}

TEST(MachineLimits, ARejectedUpdateIsNotTrainedAgain) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.give(Polled{.reported = true, .status = {}});
  fixture.give(UpdateRejected{"it has NaN"});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.last.machine.known.attempts.size(), 1u);
  EXPECT_THAT(*fixture.last.machine.known.missing, HasSubstr("it has NaN"));
  MachineFixture again;  // a damaged update of another facility starts the round's drivers again
  again.last.machine.known = fixture.last.machine.known;
  again.give(Resumed{});
  EXPECT_TRUE(again.action<Finish>());
  EXPECT_THAT(again.kinds, testing::IsEmpty()) << "no further attempt";
}

TEST(MachineLimits, ACheckpointedJobIsNoFailedAttempt) {
  MachineFixture fixture;
  fixture.to_the_job();
  fixture.give(Polled{.reported = true, .status = {}});
  fixture.give(Checkpointed{12});
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Push>()) << "the next attempt continues";
  const history::Attempt& first = fixture.last.machine.known.attempts.front();
  EXPECT_FALSE(first.counts_as_attempt);
  EXPECT_EQ(first.steps, 12);
}

TEST(MachineLimits, ASecondAttemptIsFencedToo) {
  MachineFixture fixture;
  fixture.policy.max_attempts = 3;
  fixture.to_the_job();
  for (int attempt = 1; attempt <= 2; ++attempt) {
    fixture.give(Polled{.reported = false, .status = JobStatus{.state = JobState::kEnded}});
    fixture.sleep_if_asked();
    fixture.give(Polled{.reported = false, .status = JobStatus{.state = JobState::kEnded}});
    ASSERT_TRUE(fixture.action<FindJobs>());
    fixture.give(Found{});
    ASSERT_TRUE(fixture.action<Fence>()) << "attempt " << attempt;
    EXPECT_EQ(fixture.action<Fence>()->attempt, attempt);
    fixture.give(Completed{});
    ASSERT_TRUE(fixture.action<Poll>()) << "the report may have come before the fence";
    fixture.give(Polled{.reported = false, .status = {}});
    ASSERT_TRUE(fixture.action<Push>());
    fixture.give(Pushed{});
    fixture.give(Submitted{JobId("8")});
  }
}

TEST(MachineLimits, ChecksForTheReportDoNotQueryTheScheduler) {
  MachineFixture fixture;
  fixture.to_the_job();
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_TRUE(fixture.action<Poll>()->ask_scheduler);
  std::vector<Nanoseconds> queries;
  while (fixture.now.time < hours(2)) {
    fixture.give(Polled{.reported = false, .status = JobStatus{.state = JobState::kRunning}},
                 Nanoseconds(0));
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<Poll>());
    for (; !fixture.action<Poll>()->ask_scheduler; fixture.sleep_if_asked())
      fixture.give(Polled{.reported = false, .status = {}}, Nanoseconds(0));
    queries.push_back(fixture.now.time);
  }
  for (size_t i = 1; i < queries.size(); ++i)
    EXPECT_GE(queries[i] - queries[i - 1],
              queries[i] > minutes(5) ? Nanoseconds(seconds(60)) : Nanoseconds(seconds(2)));
}

TEST(MachineLimits, AJobThatQueuesForAnHourIsQueriedLessOften) {
  const FacilityPolicy policy = MachineFixture::usual_policy();
  EXPECT_EQ(query_interval(policy, minutes(59), true), seconds(60));
  EXPECT_EQ(query_interval(policy, minutes(61), true), minutes(5));
  EXPECT_EQ(query_interval(policy, minutes(61), false), seconds(60));
}

TEST(MachineLimits, ASecondFailureDoesNotRestartTheOutage) {
  MachineFixture fixture;
  fixture.policy.max_outage = hours(1);
  fixture.give(Resumed{});
  const Nanoseconds began = fixture.now.time + seconds(1);
  for (int failures = 0; !fixture.action<Finish>(); ++failures) {
    ASSERT_LT(failures, 100);
    fixture.give(Unreachable{"the link is down"});
    fixture.sleep_if_asked();
  }
  EXPECT_GE(fixture.now.time - began, hours(1));
  EXPECT_LT(fixture.now.time - began, hours(1) + minutes(16));
}

}  // namespace
}  // namespace xffl::facility
