// Single decisions of the state machine; simulation_test.cc checks whole rounds.
#include "xffl/facility/machine.h"

#include <gtest/gtest.h>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Fixture = test::MachineFixture;

TEST(FacilityMachine, GoesThroughARoundInOrder) {
  Fixture fixture;
  fixture.give(Resumed{});
  ASSERT_TRUE(fixture.action<Push>());
  fixture.give(Pushed{});
  ASSERT_TRUE(fixture.action<Submit>());
  fixture.give(Submitted{JobId("7")});
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_TRUE(fixture.action<Poll>()->ask_scheduler);
  fixture.give(Polled{.reported = true, .status = {}});
  ASSERT_TRUE(fixture.action<FetchUpdate>());
  EXPECT_EQ(fixture.kinds,
            (std::vector<std::string>{"attempt_opened", "pushed", "submit_intended", "submitted"}));
}

TEST(FacilityMachine, AnUnknownSubmissionIsSearchedTwice) {
  Fixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  for (int look = 0; look < 2; ++look) {
    ASSERT_TRUE(fixture.action<Sleep>());
    EXPECT_EQ(fixture.action<Sleep>()->duration, seconds(10));
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<FindJobs>()) << look;
    fixture.give(Found{});
  }
  EXPECT_TRUE(fixture.action<Submit>());
}

// The first submission's job may have begun.
TEST(FacilityMachine, ARejectionAfterAnUnknownSubmissionCancelsItsJob) {
  Fixture fixture;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  for (int look = 0; look < 2; ++look) {
    fixture.sleep_if_asked();
    fixture.give(Found{});
  }
  ASSERT_TRUE(fixture.action<Submit>());
  fixture.give(SubmitRejected{"Invalid account"});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<CancelJob>());
  EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("7"));
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
}

TEST(FacilityMachine, UnknownSubmissionsEndWithTheLongestOutage) {
  Fixture fixture;
  fixture.policy.max_outage = hours(24);
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  int submissions = 0;
  while (fixture.action<Submit>() != nullptr && submissions < 1000) {
    ++submissions;
    fixture.give(SubmitUnknown{"Unspecified error"});
    fixture.sleep_if_asked();
    for (int look = 0; look < 2 && fixture.action<FindJobs>() != nullptr; ++look) {
      fixture.give(Found{});
      fixture.sleep_if_asked();
    }
  }
  EXPECT_GT(submissions, 10);
  EXPECT_LT(submissions, 200);
  ASSERT_TRUE(fixture.action<Fence>()) << "none of them may train";
  fixture.give(Completed{});
  for (int i = 0; i < 5 && fixture.action<Finish>() == nullptr; ++i) fixture.give(Found{});
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_NE(fixture.last.machine.known.missing->find("Unspecified error"), std::string::npos);
}

// Two jobs have the name of one attempt.
void find_two_jobs(Fixture& fixture) {
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  fixture.give(SubmitUnknown{"timed out"});
  fixture.sleep_if_asked();
  fixture.give(Found{{JobId("7"), JobId("8")}});
}

TEST(FacilityMachine, TheOldestDuplicateJobIsAdoptedAndTheOthersAreCancelled) {
  Fixture fixture;
  find_two_jobs(fixture);
  ASSERT_TRUE(fixture.action<CancelJob>());
  EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("8"));
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_EQ(fixture.action<Poll>()->job, JobId("7"));
}

// The duplicate finds the claim taken.
TEST(FacilityMachine, ADuplicateThatCannotBeCancelledDelaysNoPoll) {
  Fixture fixture;
  find_two_jobs(fixture);
  ASSERT_TRUE(fixture.action<CancelJob>());
  fixture.give(Unreachable{"scancel: error: Invalid job id specified"});
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_EQ(fixture.action<Poll>()->job, JobId("7"));
}

TEST(FacilityMachine, AnUnknownJobIsNotAFinishedJob) {
  Fixture fixture;
  fixture.to_the_job();
  const auto began = fixture.now.time;
  bool decides = false;  // the last query
  while (!fixture.action<FindJobs>()) {
    ASSERT_LT(fixture.now.time - began, hours(1));
    fixture.sleep_if_asked();
    if (const auto* look = fixture.action<Poll>()) {
      decides = look->decides;
      fixture.give(Polled{
          .reported = false,
          .status = look->ask_scheduler ? std::optional(submit::JobStatus{}) : std::nullopt});
    }
  }
  EXPECT_TRUE(decides) << "the scheduler must ask every source once more";
  EXPECT_GE(fixture.now.time - began, seconds(20));  // three answers over two settle times
  fixture.give(Found{{JobId("9")}});                 // it had come back under another id
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_EQ(fixture.action<Poll>()->job, JobId("9"));
}

// An isolated one now and then, in weeks, says nothing about the job.
TEST(FacilityMachine, OnlyUnknownAnswersInARowCount) {
  Fixture fixture;
  fixture.to_the_job();
  const auto answer = [&](submit::JobState state) {
    for (;;) {
      fixture.sleep_if_asked();
      const auto* look = fixture.action<Poll>();
      ASSERT_TRUE(look);
      const bool asks = look->ask_scheduler;
      fixture.give(
          Polled{.reported = false,
                 .status = asks ? std::optional(submit::JobStatus{.state = state}) : std::nullopt});
      if (asks) return;
    }
  };
  for (int i = 0; i < 10; ++i) {
    answer(submit::JobState::kUnknown);
    ASSERT_TRUE(std::holds_alternative<Polling>(fixture.last.machine.phase)) << i;
    answer(submit::JobState::kRunning);
  }
}

// The queries of a long job are a minute apart, which is longer than two settle times.
TEST(FacilityMachine, AnUnknownJobNeedsThreeUnknownAnswers) {
  Fixture fixture;
  fixture.to_the_job();
  int answers = 0;
  while (!std::holds_alternative<Ended>(fixture.last.machine.phase)) {
    ASSERT_LT(answers, 10);
    fixture.sleep_if_asked();
    const auto* look = fixture.action<Poll>();
    ASSERT_TRUE(look);
    const bool runs = fixture.now.time < hours(2);
    Polled polled{.reported = false, .status = {}};
    if (look->ask_scheduler) {
      polled.status = submit::JobStatus{.state = runs ? submit::JobState::kRunning
                                                      : submit::JobState::kUnknown};
      if (!runs) ++answers;
    }
    fixture.give(polled);
  }
  EXPECT_EQ(answers, 3);
}

// Answers that come at once, as after a restart of the controller, say nothing about the job.
TEST(FacilityMachine, AnUnknownJobIsGivenTheSettleTimeTwice) {
  Fixture fixture;
  fixture.to_the_job();
  const auto first = fixture.now.time;
  for (int answers = 0; answers < 1000 && !fixture.action<FindJobs>(); ++answers) {
    if (const auto* sleep = fixture.action<Sleep>())
      fixture.give(TimerFired{}, sleep->duration / 9);
    if (fixture.action<Poll>())
      fixture.give(Polled{.reported = false, .status = submit::JobStatus{}}, milliseconds(1));
  }
  ASSERT_TRUE(fixture.action<FindJobs>());
  EXPECT_GE(fixture.now.time - first, 2 * fixture.policy.settle_time);
}

TEST(FacilityMachine, ARequeuedJobThatEndsAgainHasItsSettleTimeAgain) {
  Fixture fixture;
  fixture.to_the_job();
  const submit::JobStatus ended{.state = submit::JobState::kEnded, .native = "NODE_FAIL"};
  const submit::JobStatus running{.state = submit::JobState::kRunning};
  for (int times = 0; times < 3; ++times) {
    fixture.give(Polled{.reported = false, .status = ended});
    ASSERT_TRUE(fixture.action<Sleep>()) << "its report may be late";
    EXPECT_EQ(fixture.action<Sleep>()->duration, fixture.policy.settle_time);
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<Poll>());
    fixture.give(Polled{.reported = false, .status = running});
    ASSERT_TRUE(fixture.action<Sleep>()) << "a running job is not polled without a pause";
    EXPECT_TRUE(std::holds_alternative<Polling>(fixture.last.machine.phase));
    fixture.sleep_if_asked();
  }
}

// Its entry is purged (MinJobAge) within the settle time for its report.
TEST(FacilityMachine, AnEndedJobThatIsPurgedIsQueriedWithPauses) {
  Fixture fixture;
  fixture.to_the_job();
  fixture.give(
      Polled{.reported = false, .status = submit::JobStatus{.state = submit::JobState::kEnded}});
  int queries = 0;
  while (!fixture.action<FindJobs>()) {
    fixture.sleep_if_asked();
    if (!fixture.action<Poll>()) continue;
    ASSERT_LT(++queries, 20) << "in " << fixture.policy.settle_time.count() << " ms";
    fixture.give(Polled{.reported = false, .status = submit::JobStatus{}}, milliseconds(10));
  }
}

TEST(FacilityMachine, AFailedAttemptIsFencedBeforeTheNextOneIsOpened) {
  Fixture fixture;
  fixture.to_the_job();
  const submit::JobStatus failed{.state = submit::JobState::kEnded, .native = "FAILED"};
  fixture.give(Polled{.reported = false, .status = failed});
  fixture.sleep_if_asked();
  fixture.give(Polled{.reported = false, .status = failed});
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{});
  ASSERT_TRUE(fixture.action<Fence>());
  EXPECT_EQ(fixture.kinds.back(), "submitted");
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Poll>()) << "for the last time";
  fixture.give(Polled{});
  EXPECT_EQ(fixture.kinds.back(), "attempt_opened");
  EXPECT_TRUE(fixture.action<Push>());
}

// The next attempt's model comes whole: it is not the training that failed.
TEST(FacilityMachine, ADamagedModelDoesNotCountAsAnAttempt) {
  Fixture fixture;
  fixture.policy.max_attempts = 1;
  fixture.to_the_job();
  fixture.give(Polled{.reported = false,
                      .status = submit::JobStatus{.state = submit::JobState::kEnded},
                      .model_error = "the reference is damaged"});
  ASSERT_TRUE(fixture.action<FindJobs>()) << "there is nothing to wait for";
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  const history::Attempt& failed = fixture.last.machine.known.attempts.front();
  ASSERT_TRUE(failed.failure);
  EXPECT_NE(failed.failure->find("the reference is damaged"), std::string::npos);
  EXPECT_FALSE(failed.counts_as_attempt);
  ASSERT_TRUE(fixture.action<Push>());
  EXPECT_EQ(fixture.action<Push>()->attempt, 2);
}

TEST(FacilityMachine, ACheckpointedTrainingContinuesWhileItMakesProgress) {
  Fixture fixture;
  fixture.policy.rerun_budget = 1;
  fixture.give(Resumed{});
  const auto stop_after = [&](int64_t steps) {
    ASSERT_TRUE(fixture.action<Push>());
    fixture.give(Pushed{});
    fixture.give(Submitted{JobId("7")});
    fixture.give(Polled{.reported = true, .status = {}});
    ASSERT_TRUE(fixture.action<FetchUpdate>());
    fixture.give(Checkpointed{steps});
    ASSERT_TRUE(fixture.action<Fence>());
    fixture.give(Completed{});
  };
  for (int64_t steps = 10; steps <= 100; steps += 10) stop_after(steps);
  stop_after(100);
  EXPECT_FALSE(fixture.last.machine.known.missing)
      << "one job without progress is within the budget";
  stop_after(100);
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_TRUE(fixture.last.machine.known.missing);
}

TEST(FacilityMachine, AJobThatAUserCancelledPausesTheFacility) {
  Fixture fixture;
  fixture.to_the_job();
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  fixture.give(Polled{.reported = false, .status = cancelled});
  fixture.sleep_if_asked();
  fixture.give(Polled{.reported = false, .status = cancelled});
  fixture.give(Found{});
  fixture.give(Completed{});
  fixture.give(Polled{});
  EXPECT_EQ(fixture.kinds.back(), "attempt_failed");
  EXPECT_EQ(fixture.kinds.at(fixture.kinds.size() - 2), "facility_paused")
      << "a kill between the two must not lead to another attempt";
  fixture.now.paused = "cancelled";
  EXPECT_TRUE(fixture.action<Sleep>());
  fixture.give(TimerFired{});
  EXPECT_TRUE(fixture.action<Sleep>());
  fixture.now.paused.reset();
  fixture.give(TimerFired{});
  EXPECT_TRUE(fixture.action<Push>());
}

TEST(FacilityMachine, CleanupAfterTheDeadlineIsTriedOnce) {
  Fixture fixture;
  fixture.policy.on_missing = config::OnMissing::kSkip;
  fixture.policy.deadline = hours(1);
  fixture.to_the_job();
  fixture.now.since_first_submission = hours(2);
  fixture.give(Polled{.reported = false, .status = {}});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Unreachable{"down"});
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.kinds.back(), "facility_missing");
  EXPECT_TRUE(fixture.last.machine.known.attempts.back().cancel_intended);  // repeated later
}

TEST(FacilityMachine, BackoffDoublesWithJitter) {
  EXPECT_LE(backoff("a", 1), seconds(5));
  EXPECT_GE(backoff("a", 1), milliseconds(2500));
  EXPECT_GE(backoff("a", 20), minutes(7));
  EXPECT_LE(backoff("a", 20), minutes(15));
  EXPECT_NE(backoff("a", 3), backoff("b", 3));  // not all facilities at once
}

TEST(FacilityMachine, IntervalsAreShortWhenAChangeIsNear) {
  const FacilityPolicy policy = Fixture::usual_policy();
  EXPECT_EQ(report_interval(policy, seconds(0), {}), milliseconds(200));
  EXPECT_EQ(report_interval(policy, hours(2), {}), seconds(30));
  FacilityPolicy expecting = policy;
  expecting.expected_training = seconds(3600);
  EXPECT_EQ(report_interval(expecting, hours(2), seconds(3598)), seconds(1));
  EXPECT_EQ(query_interval(policy, seconds(2), true), seconds(2));
  EXPECT_EQ(query_interval(policy, minutes(30), true), seconds(60));
  EXPECT_EQ(query_interval(policy, hours(3), true), seconds(300));
  EXPECT_EQ(query_interval(policy, hours(3), false), seconds(60));
}

}  // namespace
}  // namespace xffl::facility
