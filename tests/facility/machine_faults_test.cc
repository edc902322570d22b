// Decisions of the state machine while things do not work: deadlines, bad links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"
#include "simulation.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using test::MachineFixture;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const submit::JobStatus kFailed{.state = submit::JobState::kEnded, .native = "FAILED"};

Fetched an_update() { return {test::simulated_update("alba", 1, 1)}; }

// The round was first submitted to when the test's time began.
struct Skipping : MachineFixture {
  Skipping() {
    policy.on_missing = config::OnMissing::kSkip;
    policy.deadline = hours(24);
    now.since_first_submission = Nanoseconds(0);
  }
  void to_the_report() {
    to_the_job();
    give(Polled{.reported = true, .status = {}});
    ASSERT_TRUE(action<FetchUpdate>());
  }
  void to_the_fence() {
    to_the_job();
    for (int i = 0; i < 2; ++i) {
      give(Polled{.reported = false, .status = kFailed});
      sleep_if_asked();
    }
    give(Found{});
    ASSERT_TRUE(action<Fence>());
  }
  /// Answers every action so, and wakes from every sleep, until the machine is over. An action
  /// takes a second.
  int answer(const Event& event, int most = 100'000) {
    int actions = 0;
    while (!action<Finish>() && actions < most) {
      if (const auto* sleep = action<Sleep>()) {
        give(TimerFired{}, sleep->duration);
        continue;
      }
      ++actions;
      give(event);
    }
    return actions;
  }
};

class NoAnswer : public testing::TestWithParam<bool> {
 protected:
  static Event event() {
    return GetParam() ? Event(AuthRequired{"the certificate"}) : Event(Unreachable{"no room"});
  }
  static std::string word() { return GetParam() ? "the certificate" : "no room"; }
};

// A data mover that is down, a disk that is full, a certificate that has expired.
TEST_P(NoAnswer, AnUpdateThatCannotBeFetchedEndsWithTheDeadline) {
  Skipping fixture;
  fixture.policy.poll_interval = minutes(1);
  fixture.to_the_report();
  const int actions = fixture.answer(event());
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_LT(*fixture.now.since_first_submission, hours(24) + minutes(1));
  EXPECT_LT(actions, 24 * 3600 / 5 + 10) << "one each five seconds at most";
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("deadline"));
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr(word()));
  EXPECT_THAT(fixture.kinds, Contains("cancel_intended")) << "the cancellation is repeated later";
}

// A failed attempt at an unreachable facility.
TEST_P(NoAnswer, AFailedAttemptThatCannotBeFencedEndsWithTheDeadline) {
  Skipping fixture;
  fixture.to_the_fence();
  fixture.answer(event());
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_LT(*fixture.now.since_first_submission, hours(24) + minutes(1));
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("FAILED"));
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("deadline"));
  EXPECT_TRUE(fixture.last.machine.known.attempts.back().cancel_intended)
      << "the cancellation is repeated later";
}
INSTANTIATE_TEST_SUITE_P(All, NoAnswer, testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "AuthRequired" : "Unreachable");
});

TEST(FacilityMachineFaults, AReportSeenAtTheDeadlineIsFetched) {
  Skipping fixture;
  fixture.policy.settle_time = seconds(10);
  fixture.to_the_job();
  fixture.pass(hours(25));
  fixture.give(Polled{.reported = true, .status = {}});
  ASSERT_TRUE(fixture.action<FetchUpdate>()) << "it was there when it was looked for";
  fixture.give(Checkpointed{5});
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
}

TEST(FacilityMachineFaults, AFetchUnderWayAtTheDeadlineCounts) {
  Skipping fixture;
  fixture.pass(hours(23));
  fixture.to_the_report();
  fixture.give(Unreachable{"the link dropped"});
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<FetchUpdate>());
  fixture.give(an_update(), hours(2));
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.kinds.back(), "update_accepted");
}

// Nobody had looked for a while: another facility's fetch, a coordinator that was down.
TEST(FacilityMachineFaults, TheReportIsCheckedForOnceMoreAfterTheDeadline) {
  Skipping fixture;
  fixture.to_the_job();
  fixture.give(Polled{.reported = false, .status = {}});
  ASSERT_TRUE(fixture.action<Sleep>());
  fixture.give(TimerFired{}, hours(25));
  ASSERT_TRUE(fixture.action<Poll>());
  Skipping again;
  again.last.machine.known = fixture.last.machine.known;
  again.pass(hours(26));
  again.give(Resumed{});
  ASSERT_TRUE(again.action<Poll>());
  again.give(Polled{.reported = false, .status = {}});
  ASSERT_TRUE(again.action<Fence>());
  fixture.give(Polled{.reported = true, .status = {}});
  EXPECT_TRUE(fixture.action<FetchUpdate>());
}

// The deadline passes while the ended job's report may still be late on a shared file system.
TEST(FacilityMachineFaults, TheReportOfAnEndedJobIsCheckedForOnceMoreAfterTheDeadline) {
  Skipping fixture;
  fixture.to_the_job();
  fixture.give(Polled{.reported = false, .status = kFailed});
  ASSERT_TRUE(fixture.action<Sleep>());
  fixture.give(TimerFired{}, hours(25));
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Polled{.reported = true, .status = {}});
  EXPECT_TRUE(fixture.action<FetchUpdate>());
}

TEST(FacilityMachineFaults, AReportThatCannotBeFetchedEndsWithTheLongestOutage) {
  Skipping fixture;
  fixture.policy.on_missing = config::OnMissing::kWait;
  fixture.policy.max_outage = hours(48);
  fixture.to_the_report();
  fixture.answer(Unreachable{"no room"});
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_GT(fixture.now.time, hours(48));
  EXPECT_LT(fixture.now.time, hours(49));
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("no room"));
}

// --- A facility whose files are invisible for a while ---

// Maintenance: its jobs have ended, its login node is back, its file system is not mounted yet.
// The fence refreshes the view of the folder.
TEST(FacilityMachineFaults, AReportSeenAfterTheFenceIsFetched) {
  Skipping fixture;
  fixture.to_the_fence();
  fixture.give(Unreachable{"read-only file system"});
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Fence>());
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Poll>());
  EXPECT_FALSE(fixture.action<Poll>()->ask_scheduler);
  fixture.give(Unreachable{"the link dropped"});
  fixture.sleep_if_asked();
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Polled{.reported = true, .status = {}});
  ASSERT_TRUE(fixture.action<FetchUpdate>());
  fixture.give(an_update());
  EXPECT_TRUE(fixture.action<Finish>());
  EXPECT_EQ(fixture.kinds.back(), "update_accepted");
  EXPECT_THAT(fixture.kinds, Not(Contains("attempt_failed")));
}

TEST(FacilityMachineFaults, TheFinalPollEndsWithTheDeadline) {
  Skipping fixture;
  fixture.to_the_fence();
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.answer(Unreachable{"the link dropped"});
  ASSERT_TRUE(fixture.action<Finish>());
  EXPECT_LT(*fixture.now.since_first_submission, hours(24) + minutes(1));
  EXPECT_THAT(fixture.last.machine.known.missing.value_or(""), HasSubstr("FAILED"));
}

// Its cancellation is on record, and would otherwise wait for the next round.
TEST(FacilityMachineFaults, AJobAtItsFinalPollIsCancelledAtTheDeadline) {
  Skipping fixture;
  fixture.to_the_fence();
  fixture.give(Completed{});
  ASSERT_TRUE(fixture.action<Poll>());
  fixture.give(Unreachable{"the link dropped"}, hours(25));
  ASSERT_TRUE(fixture.action<FindJobs>());
  fixture.give(Found{{JobId("7")}});
  ASSERT_TRUE(fixture.action<CancelJob>());
  fixture.give(Completed{});
  EXPECT_TRUE(fixture.action<Finish>());
}

// --- A link that drops again and again ---

TEST(FacilityMachineFaults, ATransferThatGainsBytesIsNoOutage) {
  MachineFixture fixture;
  fixture.policy.max_outage = hours(2);
  fixture.give(Resumed{});
  ASSERT_TRUE(fixture.action<Push>());
  Nanoseconds longest{0};
  for (int drops = 0; drops < 100; ++drops) {  // every four minutes, with 64 MiB gained
    fixture.give(
        Unreachable{.reason = "the link dropped", .gained_bytes = drops == 0 ? 0 : 64u << 20},
        minutes(4));
    ASSERT_TRUE(fixture.action<Sleep>()) << "after " << drops << " drops";
    longest = std::max(longest, fixture.action<Sleep>()->duration);
    fixture.sleep_if_asked();
    ASSERT_TRUE(fixture.action<Push>());
  }
  EXPECT_LE(longest, seconds(10));
}

}  // namespace
}  // namespace xffl::facility
