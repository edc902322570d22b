// Decisions of the state machine while things do not work: deadlines, bad links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"
#include "xffl/job/job_report.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using test::CourseHand;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const submit::JobStatus kFailed{.state = submit::JobState::kEnded, .native = "FAILED"};

Fetched an_update() {
  job::JobReport report;
  report.key = {"p", "0001", 1, "alba", 1, std::string(32, '0')};
  report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
  report.steps = report.samples = report.tokens = 1;
  report.tokens_per_second = report.train_seconds = report.total_seconds = 1;
  report.trainer = "simulated";
  return {.accepted = {},
          .details = {{"update_sha256", report.update_sha256},
                      {"report", parse_json(job::format_job_report(report), "test")}}};
}

// The round was first submitted to when the test's time began.
struct Skipping : CourseHand {
  Skipping() {
    rules.waits_for_ever = false;
    rules.deadline = hours(24);
    moment.since_first_submission = Nanoseconds(0);
  }
  void to_the_report() {
    to_the_job();
    give(Looked{.reported = true, .status = {}});
    ASSERT_TRUE(action<FetchUpdate>());
  }
  void to_the_fence() {
    to_the_job();
    for (int i = 0; i < 2; ++i) {
      give(Looked{.reported = false, .status = kFailed});
      sleep_if_asked();
    }
    give(Found{});
    ASSERT_TRUE(action<Fence>());
  }
  /// Answers every action so, and wakes from every sleep, until the course is over. An action takes
  /// a second.
  int answer(const Event& event, int most = 100'000) {
    int actions = 0;
    while (!action<Finish>() && actions < most) {
      if (const auto* sleep = action<Sleep>()) {
        give(Woke{}, sleep->duration);
        continue;
      }
      ++actions;
      give(event);
    }
    return actions;
  }
};

class Trouble : public testing::TestWithParam<bool> {
 protected:
  static Event event() {
    return GetParam() ? Event(NeedsPerson{"the certificate"}) : Event(Unreachable{"no room"});
  }
  static std::string word() { return GetParam() ? "the certificate" : "no room"; }
};

// A data mover that is down, a disk that is full, a certificate that has expired.
TEST_P(Trouble, AnUpdateThatCannotBeFetchedEndsWithTheDeadline) {
  Skipping hand;
  hand.rules.poll_interval = minutes(1);
  hand.to_the_report();
  const int actions = hand.answer(event());
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_LT(*hand.moment.since_first_submission, hours(24) + minutes(1));
  EXPECT_LT(actions, 24 * 3600 / 5 + 10) << "one each five seconds at most";
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr("deadline"));
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr(word()));
  EXPECT_THAT(hand.kinds, Contains("cancel_intended")) << "the facility is told later";
}

// An attempt that has failed, at a facility that cannot be told.
TEST_P(Trouble, AFailedAttemptThatCannotBeFencedEndsWithTheDeadline) {
  Skipping hand;
  hand.to_the_fence();
  hand.answer(event());
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_LT(*hand.moment.since_first_submission, hours(24) + minutes(1));
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr("FAILED"));
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr("deadline"));
  EXPECT_TRUE(hand.last.course.known.attempts.back().cancel_intended) << "it is told later";
}
INSTANTIATE_TEST_SUITE_P(All, Trouble, testing::Bool(), [](const auto& each) {
  return std::string(each.param ? "NeedsPerson" : "Unreachable");
});

TEST(CourseWeather, AReportThatIsSeenAtTheDeadlineIsRead) {
  Skipping hand;
  hand.rules.settle_time = seconds(10);
  hand.to_the_job();
  hand.pass(hours(25));
  hand.give(Looked{.reported = true, .status = {}});
  ASSERT_TRUE(hand.action<FetchUpdate>()) << "it was there when it was looked for";
  hand.give(ToBeContinued{5});
  ASSERT_TRUE(hand.action<Fence>());
  hand.give(Completed{});
  EXPECT_TRUE(hand.action<Finish>());
}

TEST(CourseWeather, AFetchThatIsUnderWayAtTheDeadlineCounts) {
  Skipping hand;
  hand.pass(hours(23));
  hand.to_the_report();
  hand.give(Unreachable{"the link dropped"});
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<FetchUpdate>());
  hand.give(an_update(), hours(2));
  EXPECT_TRUE(hand.action<Finish>());
  EXPECT_EQ(hand.kinds.back(), "update_accepted");
}

// Nobody had looked for a while: another facility's fetch, a coordinator that was down.
TEST(CourseWeather, TheLastWordIsALooks) {
  Skipping hand;
  hand.to_the_job();
  hand.give(Looked{.reported = false, .status = {}});
  ASSERT_TRUE(hand.action<Sleep>());
  hand.give(Woke{}, hours(25));
  ASSERT_TRUE(hand.action<Look>());
  Skipping again;
  again.last.course.known = hand.last.course.known;
  again.pass(hours(26));
  again.give(Began{});
  ASSERT_TRUE(again.action<Look>());
  again.give(Looked{.reported = false, .status = {}});
  ASSERT_TRUE(again.action<Fence>());
  hand.give(Looked{.reported = true, .status = {}});
  EXPECT_TRUE(hand.action<FetchUpdate>());
}

TEST(CourseWeather, AReportThatCannotBeFetchedEndsWithAnOutage) {
  Skipping hand;
  hand.rules.waits_for_ever = true;
  hand.rules.max_outage = hours(48);
  hand.to_the_report();
  hand.answer(Unreachable{"no room"});
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_GT(hand.moment.now, hours(48));
  EXPECT_LT(hand.moment.now, hours(49));
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr("no room"));
}

// --- A facility whose files are not to be seen for a while ---

// Maintenance: its jobs have ended, its log-in node is back, its file system is not mounted yet.
// What takes the claim has seen it.
TEST(CourseWeather, AReportThatIsSeenOnceTheClaimIsTakenCounts) {
  Skipping hand;
  hand.to_the_fence();
  hand.give(Unreachable{"read-only file system"});
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<Fence>());
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Look>());
  EXPECT_FALSE(hand.action<Look>()->ask_scheduler);
  hand.give(Unreachable{"the link dropped"});
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<Look>());
  hand.give(Looked{.reported = true, .status = {}});
  ASSERT_TRUE(hand.action<FetchUpdate>());
  hand.give(an_update());
  EXPECT_TRUE(hand.action<Finish>());
  EXPECT_EQ(hand.kinds.back(), "update_accepted");
  EXPECT_THAT(hand.kinds, Not(Contains("attempt_failed")));
}

TEST(CourseWeather, TheLastLookEndsWithTheDeadline) {
  Skipping hand;
  hand.to_the_fence();
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Look>());
  hand.answer(Unreachable{"the link dropped"});
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_LT(*hand.moment.since_first_submission, hours(24) + minutes(1));
  EXPECT_THAT(hand.last.course.known.missing.value_or(""), HasSubstr("FAILED"));
}

// --- A link that drops again and again ---

TEST(CourseWeather, ATransferThatGetsOnIsNoOutage) {
  CourseHand hand;
  hand.rules.max_outage = hours(2);
  hand.give(Began{});
  ASSERT_TRUE(hand.action<Push>());
  Nanoseconds longest{0};
  for (int drops = 0; drops < 100; ++drops) {  // every four minutes, with 64 MiB gained
    hand.give(Unreachable{.why = "the link dropped", .gained_bytes = drops == 0 ? 0 : 64u << 20},
              minutes(4));
    ASSERT_TRUE(hand.action<Sleep>()) << "after " << drops << " drops";
    longest = std::max(longest, hand.action<Sleep>()->duration);
    hand.sleep_if_asked();
    ASSERT_TRUE(hand.action<Push>());
  }
  EXPECT_LE(longest, seconds(10));
}

}  // namespace
}  // namespace xffl::facility
