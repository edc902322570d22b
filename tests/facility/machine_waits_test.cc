// Decisions of the state machine while it waits for a person or for a queue, or goes on after a
// kill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using test::CourseHand;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// --- Waiting for a person, and for others ---

// Answers every action but a sleep so, for as long.
void answer_for(CourseHand& hand, Nanoseconds time, const Event& event) {
  const Nanoseconds until = hand.moment.now + time;
  for (int actions = 0; hand.moment.now < until; ++actions) {
    ASSERT_LT(actions, 2'000'000);
    ASSERT_FALSE(hand.action<Finish>()) << hand.last.course.known.missing.value_or("");
    if (const auto* sleep = hand.action<Sleep>())
      hand.give(Woke{}, sleep->duration);
    else
      hand.give(event);
  }
}

TEST(CourseWeather, AnExpiredCertificateAfterAnOutageIsNoOutage) {
  CourseHand hand;
  hand.to_the_job();
  hand.give(Unreachable{"down"});
  answer_for(hand, hours(24 * 30), NeedsPerson{"the certificate"});
  hand.give(Unreachable{"down again"});
  hand.sleep_if_asked();
  EXPECT_TRUE(hand.action<Look>());
  EXPECT_THAT(hand.kinds, Not(Contains("facility_missing")));
}

TEST(CourseWeather, AnExpiredCertificateAfterADoubtIsNoOutage) {
  CourseHand hand;
  hand.give(Began{});
  hand.give(Completed{});
  for (int doubt = 0; doubt < 2; ++doubt) {
    ASSERT_TRUE(hand.action<Submit>());
    hand.give(InDoubt{"timed out"});
    hand.sleep_if_asked();
    for (int look = 0; look < 2; ++look) {
      hand.give(Found{});
      hand.sleep_if_asked();
    }
  }
  ASSERT_TRUE(hand.action<Submit>());
  answer_for(hand, hours(24 * 30), NeedsPerson{"the certificate"});
  EXPECT_THAT(hand.kinds, Not(Contains("facility_missing")));
}

// Its limits are those of a queue, not of a link.
TEST(CourseWeather, ASubmissionThatIsPostponedForLongIsNoOutage) {
  CourseHand hand;
  hand.rules.max_outage = seconds(300);
  hand.give(Began{});
  hand.give(Completed{});
  answer_for(hand, hours(24 * 30), Postponed{"QOSMaxSubmitJobPerUserLimit"});
  hand.give(Postponed{"QOSMaxSubmitJobPerUserLimit"});
  ASSERT_TRUE(hand.action<Sleep>());
  EXPECT_GT(hand.action<Sleep>()->duration, minutes(7)) << "asked ever less often";
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<Submit>());
  hand.give(Submitted{JobId("7")});
  EXPECT_TRUE(hand.action<Look>());
}

// --- What a coordinator left that was killed ---

TEST(CourseWeather, ItsOwnCancellationIsNobodyElses) {
  CourseHand before;
  before.rules.waits_for_ever = false;
  before.rules.deadline = hours(24);
  before.to_the_job();
  before.moment.since_first_submission = hours(25);
  before.give(Looked{.reported = false, .status = {}});
  ASSERT_EQ(before.kinds.back(), "cancel_intended");
  CourseHand hand;
  hand.last.course.known = before.last.course.known;
  hand.give(Began{});
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  for (int i = 0; i < 20 && !hand.action<Push>(); ++i) {
    if (hand.action<Sleep>())
      hand.sleep_if_asked();
    else if (hand.action<Look>())
      hand.give(Looked{.reported = false, .status = cancelled});
    else if (hand.action<FindJobs>())
      hand.give(Found{{JobId("7")}});
    else
      hand.give(Completed{});
  }
  EXPECT_TRUE(hand.action<Push>());
  EXPECT_THAT(hand.kinds, Not(Contains("facility_paused")));
  EXPECT_THAT(hand.kinds, Contains("cancel_confirmed"));
  const history::Attempt& ended = hand.last.course.known.attempts.front();
  EXPECT_THAT(ended.failure.value_or(""), HasSubstr("cancellation had begun"));
  EXPECT_FALSE(ended.charged);
}

// What was one too many comes up again when the job that was watched is forgotten.
TEST(CourseWeather, ATwinThatItHasCancelledIsNobodyElsesAffair) {
  CourseHand hand;
  hand.give(Began{});
  hand.give(Completed{});
  hand.give(InDoubt{"timed out"});
  hand.sleep_if_asked();
  hand.give(Found{{JobId("7"), JobId("8")}});
  hand.give(Completed{});
  CourseHand later;  // after a kill
  later.last.course.known = hand.last.course.known;
  later.give(Began{});
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  for (int i = 0; i < 40 && !later.action<Push>(); ++i) {
    if (later.action<Sleep>())
      later.sleep_if_asked();
    else if (const auto* look = later.action<Look>())
      later.give(Looked{.reported = false,
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

// --- A facility that a person paused ---

// Looks for jobs that find none; no submission comes of it in `time`.
void expect_no_submission(CourseHand& hand, Nanoseconds time) {
  const Nanoseconds until = hand.moment.now + time;
  for (int actions = 0; hand.moment.now < until; ++actions) {
    ASSERT_LT(actions, 200'000);
    ASSERT_FALSE(hand.action<Submit>()) << "at " << hand.moment.now.count() / 1'000'000'000 << " s";
    if (const auto* sleep = hand.action<Sleep>()) {
      ASSERT_GE(sleep->duration, seconds(1));
      hand.give(Woke{}, sleep->duration);
    } else {
      ASSERT_TRUE(hand.action<FindJobs>());
      hand.give(Found{});
    }
  }
}

// Afterwards a submission, at the latest after another look.
void expect_submission(CourseHand& hand) {
  hand.moment.paused.reset();
  for (int i = 0; i < 4 && !hand.action<Submit>(); ++i) {
    if (hand.action<Sleep>())
      hand.sleep_if_asked();
    else
      hand.give(Found{});
  }
  EXPECT_TRUE(hand.action<Submit>());
}

TEST(CoursePaused, APostponedSubmissionIsHeldBack) {
  CourseHand hand;
  hand.give(Began{});
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Submit>());
  hand.moment.paused = "a person";
  hand.give(Postponed{"QOSMaxSubmitJobPerUserLimit"});
  expect_no_submission(hand, hours(24 * 30));
  EXPECT_FALSE(hand.last.course.known.missing) << "it is no outage";
  expect_submission(hand);
}

TEST(CoursePaused, APushThatIsOwedIsNoOutage) {
  CourseHand hand;
  hand.give(Began{});
  ASSERT_TRUE(hand.action<Push>());
  hand.give(Unreachable{"down"});
  hand.moment.paused = "a person";
  expect_no_submission(hand, hours(24 * 30));
  EXPECT_FALSE(hand.last.course.known.missing) << "it is no outage";
  hand.moment.paused.reset();
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<Push>());
  hand.give(Unreachable{"down again"});
  hand.sleep_if_asked();
  EXPECT_TRUE(hand.action<Push>());
}

TEST(CoursePaused, ASubmissionAfterADoubtIsHeldBack) {
  CourseHand hand;
  hand.give(Began{});
  hand.give(Completed{});
  hand.give(InDoubt{"timed out"});
  hand.moment.paused = "a person";
  expect_no_submission(hand, hours(24 * 30));
  EXPECT_FALSE(hand.last.course.known.missing);
  expect_submission(hand);
}

TEST(CoursePaused, ASubmissionAfterARestartIsHeldBack) {
  CourseHand before;
  before.give(Began{});
  before.give(Completed{});
  CourseHand hand;
  hand.last.course.known = before.last.course.known;
  hand.moment.paused = "a person";
  hand.give(Began{});
  expect_no_submission(hand, hours(24 * 30));
  expect_submission(hand);
}

// A job that had been submitted all the same is seen as soon as it appears.
TEST(CoursePaused, AJobThatAppearsIsAdopted) {
  CourseHand hand;
  hand.give(Began{});
  hand.give(Completed{});
  hand.give(InDoubt{"timed out"});
  hand.moment.paused = "a person";
  expect_no_submission(hand, hours(2));
  hand.sleep_if_asked();
  ASSERT_TRUE(hand.action<FindJobs>());
  hand.give(Found{{JobId("7")}});
  EXPECT_TRUE(hand.action<Look>());
}

}  // namespace
}  // namespace xffl::facility
