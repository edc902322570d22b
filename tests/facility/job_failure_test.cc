// The failure of an attempt whose job left no report: every end of a job, as far as the scheduler
// knows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::minutes;
using submit::EndCause;
using submit::JobState;
using submit::JobStatus;
using testing::HasSubstr;

struct End {
  std::string name;
  JobStatus status;
  std::string model_error{};
  bool is_duplicate = false;
  // Expected:
  std::string reason;
  bool counts_as_attempt = true, fatal = false, pauses_facility = false, final_poll = true;
  bool job_may_run = false;
};

void PrintTo(const End& end, std::ostream* out) { *out << end.name; }

class JobFailure : public testing::TestWithParam<End> {};

TEST_P(JobFailure, IsClassified) {
  const End& end = GetParam();
  test::MachineFixture fixture;
  fixture.policy.max_attempts = 5;
  fixture.give(Resumed{});
  fixture.give(Pushed{});
  if (end.is_duplicate) {  // job 7 is forgotten, and its cancelled duplicate comes up again
    fixture.give(SubmitUnknown{"timed out"});
    fixture.sleep_if_asked();
    fixture.give(Found{{JobId("6"), JobId("7")}});
    fixture.give(Completed{});
    fixture.last.machine.known.attempts.back().job_id = "7";
    fixture.last.machine = {fixture.last.machine.known, {}, {}, {}};
    fixture.give(Resumed{});
  } else {
    fixture.give(Submitted{JobId("7")});
  }
  while (!fixture.action<FindJobs>()) {
    fixture.sleep_if_asked();
    if (fixture.action<Poll>())
      fixture.give(Polled{.reported = false, .status = end.status, .model_error = end.model_error},
                   minutes(1));
  }
  fixture.give(Found{});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  if (end.job_may_run) {
    ASSERT_TRUE(fixture.action<FindJobs>());
    fixture.give(Found{});
    ASSERT_TRUE(fixture.action<CancelJob>()) << "it must not train beside the next attempt's job";
    EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("7"));
    fixture.give(Completed{});
    EXPECT_THAT(fixture.kinds, testing::Contains("cancel_confirmed"));
  }
  EXPECT_EQ(fixture.action<Poll>() != nullptr, end.final_poll);
  if (end.final_poll) fixture.give(Polled{});
  const history::FacilityState& known = fixture.last.machine.known;
  const history::Attempt& failed = known.attempts.front();
  EXPECT_THAT(failed.failure.value_or(""), HasSubstr(end.reason));
  EXPECT_EQ(failed.counts_as_attempt, end.counts_as_attempt);
  bool job_may_run = !end.job_may_run;
  for (const Record& record : fixture.last.records)
    if (const auto* event = std::get_if<history::AttemptFailed>(&record.event))
      job_may_run = event->job_may_run;
  EXPECT_EQ(job_may_run, end.job_may_run) << "such a job uses the budget for its whole walltime";
  EXPECT_EQ(known.missing.has_value(), end.fatal);
  EXPECT_EQ(std::count(fixture.kinds.begin(), fixture.kinds.end(), "facility_paused"),
            end.pauses_facility ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, JobFailure,
    testing::Values(
        End{.name = "Failed",
            .status = {.state = JobState::kEnded, .native = "FAILED"},
            .reason = "job 7 ended without a report (FAILED)"},
        End{.name = "NodeFailure",
            .status = {.state = JobState::kEnded,
                       .cause = EndCause::kInfrastructure,
                       .native = "NODE_FAIL"},
            .reason = "ended without a report (NODE_FAIL)",
            .counts_as_attempt = false},
        End{.name = "Walltime",
            .status = {.state = JobState::kEnded,
                       .cause = EndCause::kWalltime,
                       .native = "TIMEOUT"},
            .reason = "ended without a report (TIMEOUT)",
            .counts_as_attempt = false},
        End{.name = "OutOfMemory",
            .status = {.state = JobState::kEnded,
                       .cause = EndCause::kOutOfMemory,
                       .native = "OUT_OF_MEMORY"},
            .reason = "ran out of memory",
            .fatal = true},
        End{.name = "CancelledByAUser",
            .status = {.state = JobState::kCancelled, .native = "CANCELLED by 1000"},
            .reason = "was cancelled by a user or an administrator (CANCELLED by 1000)",
            .counts_as_attempt = false,
            .pauses_facility = true},
        End{.name = "CancelledDuplicate",
            .status = {.state = JobState::kCancelled, .native = "CANCELLED"},
            .is_duplicate = true,
            .reason = "job 7 ended without a report (CANCELLED)",
            .counts_as_attempt = false},
        End{.name = "Forgotten",
            .status = {.state = JobState::kUnknown},
            .reason = "the scheduler no longer knows job 7",
            .counts_as_attempt = false,
            .job_may_run = true},
        End{.name = "DamagedModel",
            .status = {.state = JobState::kEnded, .native = "FAILED"},
            .model_error = "chunk 3 differs",
            .reason = "found its input model damaged (the model is sent again): chunk 3",
            .counts_as_attempt = false,
            .final_poll = false}),
    [](const auto& each) { return each.param.name; });

// A shared file system shows the job's report of the damage after the job's end.
TEST(DamagedModel, ALateReportOfTheDamageCountsNoAttempt) {
  test::MachineFixture fixture;
  fixture.policy.max_attempts = 1;
  fixture.to_the_job();
  const JobStatus ended{.state = JobState::kEnded, .native = "FAILED"};
  fixture.give(Polled{.reported = false, .status = ended});
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Polled{.reported = false, .status = ended, .model_error = "chunk 3 differs"});
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Push>()) << "the model is sent again";
  const history::Attempt& failed = fixture.last.machine.known.attempts.front();
  EXPECT_THAT(failed.failure.value_or(""), HasSubstr("chunk 3 differs"));
  EXPECT_FALSE(failed.counts_as_attempt);
}

// The scheduler holds the job, and its next attempt has a job of its own.
TEST(FailedLaunch, ItsHeldJobIsCancelled) {
  test::MachineFixture fixture;
  fixture.to_the_job();
  const JobStatus held{.state = JobState::kEnded,
                       .cause = EndCause::kInfrastructure,
                       .reason = "launch failed requeued held",
                       .stays_queued = true};
  while (!fixture.action<FindJobs>()) {
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<Poll>());
    fixture.give(Polled{.reported = false, .status = held});
  }
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<CancelJob>());
  EXPECT_EQ(fixture.action<CancelJob>()->job, JobId("7"));
}

// A job that the scheduler no longer knows: the deciding query found nothing, and the search for
// duplicates finds the job.
class ForgottenJob : public testing::Test {
 protected:
  ForgottenJob() { fixture_.to_the_job(); }

  // Gives this status until the machine searches for duplicates.
  void poll_until_search(const JobStatus& status) {
    while (!fixture_.action<FindJobs>()) {
      fixture_.sleep_if_asked();
      if (fixture_.action<Poll>())
        fixture_.give(Polled{.reported = false, .status = status, .model_error = {}}, minutes(1));
    }
  }

  test::MachineFixture fixture_;
};

TEST_F(ForgottenJob, IsAskedForAgainWhenTheAccountingWasLate) {
  poll_until_search({.state = JobState::kUnknown});
  fixture_.give(Found{{JobId("7")}});
  fixture_.sleep_if_asked();
  ASSERT_TRUE(fixture_.action<Poll>());
  EXPECT_TRUE(fixture_.action<Poll>()->ask_scheduler);
  poll_until_search({.state = JobState::kEnded, .cause = EndCause::kOutOfMemory, .native = "OOM"});
  fixture_.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture_.action<Fence>());
  fixture_.give(Completed{});
  fixture_.give(Polled{});
  const auto& failed = std::get<history::AttemptFailed>(fixture_.last.records.front().event);
  EXPECT_THAT(failed.reason, HasSubstr("ran out of memory"));
}

TEST_F(ForgottenJob, IsGivenUpWhenTheSearchAndTheQueryContradictEachOther) {
  int searches = 0;
  while (!fixture_.action<Fence>()) {
    ASSERT_LT(++searches, 10);
    poll_until_search({.state = JobState::kUnknown});
    fixture_.give(Found{{JobId("7")}});
    fixture_.sleep_if_asked();
  }
  EXPECT_EQ(searches, 4);
  fixture_.give(Completed{});
  ASSERT_TRUE(fixture_.action<FindJobs>()) << "the job may run";
  fixture_.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture_.action<CancelJob>());
  EXPECT_EQ(fixture_.action<CancelJob>()->job, JobId("7"));
  fixture_.give(Completed{});
  EXPECT_TRUE(fixture_.action<Poll>()) << "one cancellation";
}

// The coordinator dies during the cancellation.
TEST_F(ForgottenJob, ItsLateReportCountsAfterARestart) {
  poll_until_search({.state = JobState::kUnknown});
  fixture_.give(Found{});
  ASSERT_THAT(fixture_.kinds, testing::Contains("cancel_intended"));
  fixture_.last.machine = {fixture_.last.machine.known, {}, {}, {}};
  fixture_.give(Resumed{});
  ASSERT_TRUE(fixture_.action<Fence>());
  fixture_.give(Completed{});
  ASSERT_TRUE(fixture_.action<FindJobs>());
  fixture_.give(Found{});
  ASSERT_TRUE(fixture_.action<CancelJob>());
  fixture_.give(Completed{});
  ASSERT_TRUE(fixture_.action<Poll>());
  fixture_.give(Polled{.reported = true, .status = {}});
  EXPECT_TRUE(fixture_.action<FetchUpdate>());
}

}  // namespace
}  // namespace xffl::facility
