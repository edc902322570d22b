// Single decisions of the state machine; what they add up to is simulation_test.cc's affair.
#include "xffl/facility/machine.h"

#include <gtest/gtest.h>

#include "machine_fixture.h"

namespace xffl::facility {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Hand = test::CourseHand;

TEST(Course, GoesThroughARoundInOrder) {
  Hand hand;
  hand.give(Began{});
  ASSERT_TRUE(hand.action<Push>());
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Submit>());
  hand.give(Submitted{JobId("7")});
  ASSERT_TRUE(hand.action<Look>());
  EXPECT_TRUE(hand.action<Look>()->ask_scheduler);
  hand.give(Looked{.reported = true, .status = {}});
  ASSERT_TRUE(hand.action<FetchUpdate>());
  EXPECT_EQ(hand.kinds,
            (std::vector<std::string>{"attempt_opened", "pushed", "submit_intended", "submitted"}));
}

TEST(Course, LooksTwiceForASubmissionInDoubt) {
  Hand hand;
  hand.give(Began{});
  hand.give(Completed{});
  hand.give(InDoubt{"timed out"});
  for (int look = 0; look < 2; ++look) {
    ASSERT_TRUE(hand.action<Sleep>());
    EXPECT_EQ(hand.action<Sleep>()->duration, seconds(10));
    hand.sleep_if_asked();
    ASSERT_TRUE(hand.action<FindJobs>()) << look;
    hand.give(Found{});
  }
  EXPECT_TRUE(hand.action<Submit>());
}

TEST(Course, DoesNotSubmitIntoDoubtForEver) {
  Hand hand;
  hand.rules.max_outage = hours(24);
  hand.give(Began{});
  hand.give(Completed{});
  int submissions = 0;
  while (hand.action<Submit>() != nullptr && submissions < 1000) {
    ++submissions;
    hand.give(InDoubt{"Unspecified error"});
    hand.sleep_if_asked();
    for (int look = 0; look < 2 && hand.action<FindJobs>() != nullptr; ++look) {
      hand.give(Found{});
      hand.sleep_if_asked();
    }
  }
  EXPECT_GT(submissions, 10);
  EXPECT_LT(submissions, 200);
  hand.give(Completed{});  // the claim is taken, so that none of them can train
  for (int i = 0; i < 5 && hand.action<Finish>() == nullptr; ++i) hand.give(Found{});
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_NE(hand.last.course.known.missing->find("Unspecified error"), std::string::npos);
}

TEST(Course, AdoptsTheOldestOfTwinsAndCancelsTheRest) {
  Hand hand;
  hand.give(Began{});
  hand.give(Completed{});
  hand.give(InDoubt{"timed out"});
  hand.sleep_if_asked();
  hand.give(Found{{JobId("7"), JobId("8")}});
  ASSERT_TRUE(hand.action<CancelJob>());
  EXPECT_EQ(hand.action<CancelJob>()->job, JobId("8"));
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Look>());
  EXPECT_EQ(hand.action<Look>()->job, JobId("7"));
}

TEST(Course, UnknownIsNotFinished) {
  Hand hand;
  hand.to_the_job();
  const auto began = hand.moment.now;
  while (!hand.action<FindJobs>()) {
    ASSERT_LT(hand.moment.now - began, hours(1));
    hand.sleep_if_asked();
    if (const auto* look = hand.action<Look>())
      hand.give(Looked{
          .reported = false,
          .status = look->ask_scheduler ? std::optional(submit::JobStatus{}) : std::nullopt});
  }
  EXPECT_GE(hand.moment.now - began, seconds(20));  // three answers over two settle times
  hand.give(Found{{JobId("9")}});                   // it had come back under another id
  ASSERT_TRUE(hand.action<Look>());
  EXPECT_EQ(hand.action<Look>()->job, JobId("9"));
}

TEST(Course, FencesAFailedAttemptBeforeItOpensAnother) {
  Hand hand;
  hand.to_the_job();
  const submit::JobStatus failed{.state = submit::JobState::kEnded, .native = "FAILED"};
  hand.give(Looked{.reported = false, .status = failed});
  hand.sleep_if_asked();
  hand.give(Looked{.reported = false, .status = failed});
  ASSERT_TRUE(hand.action<FindJobs>());
  hand.give(Found{});
  ASSERT_TRUE(hand.action<Fence>());
  EXPECT_EQ(hand.kinds.back(), "submitted");
  hand.give(Completed{});
  ASSERT_TRUE(hand.action<Look>()) << "for the last time";
  hand.give(Looked{});
  EXPECT_EQ(hand.kinds.back(), "attempt_opened");
  EXPECT_TRUE(hand.action<Push>());
}

// The next attempt's model comes whole: it is not the training that failed.
TEST(Course, AModelThatWasNotUnpackedIsNotHeldAgainstTheTraining) {
  Hand hand;
  hand.rules.max_attempts = 1;
  hand.to_the_job();
  hand.give(Looked{.reported = false,
                   .status = submit::JobStatus{.state = submit::JobState::kEnded},
                   .not_unpacked = "the reference is damaged"});
  ASSERT_TRUE(hand.action<FindJobs>()) << "there is nothing to wait for";
  hand.give(Found{{JobId("7")}});
  ASSERT_TRUE(hand.action<Fence>());
  hand.give(Completed{});
  const history::Attempt& failed = hand.last.course.known.attempts.front();
  ASSERT_TRUE(failed.failure);
  EXPECT_NE(failed.failure->find("the reference is damaged"), std::string::npos);
  EXPECT_FALSE(failed.charged);
  ASSERT_TRUE(hand.action<Push>());
  EXPECT_EQ(hand.action<Push>()->attempt, 2);
}

TEST(Course, GoesOnWithATrainingThatWasStoppedAsLongAsItMakesProgress) {
  Hand hand;
  hand.rules.rerun_budget = 1;
  hand.give(Began{});
  const auto stop_after = [&](int64_t steps) {
    ASSERT_TRUE(hand.action<Push>());
    hand.give(Completed{});
    hand.give(Submitted{JobId("7")});
    hand.give(Looked{.reported = true, .status = {}});
    ASSERT_TRUE(hand.action<FetchUpdate>());
    hand.give(ToBeContinued{steps});
    ASSERT_TRUE(hand.action<Fence>());
    hand.give(Completed{});
  };
  for (int64_t steps = 10; steps <= 100; steps += 10) stop_after(steps);
  stop_after(100);
  EXPECT_FALSE(hand.last.course.known.missing) << "one job without progress is within the budget";
  stop_after(100);
  EXPECT_TRUE(hand.action<Finish>());
  EXPECT_TRUE(hand.last.course.known.missing);
}

TEST(Course, AsksAPersonAboutAJobThatSomebodyCancelled) {
  Hand hand;
  hand.to_the_job();
  const submit::JobStatus cancelled{.state = submit::JobState::kCancelled, .native = "CANCELLED"};
  hand.give(Looked{.reported = false, .status = cancelled});
  hand.sleep_if_asked();
  hand.give(Looked{.reported = false, .status = cancelled});
  hand.give(Found{});
  hand.give(Completed{});
  hand.give(Looked{});
  EXPECT_EQ(hand.kinds.back(), "attempt_failed");
  EXPECT_EQ(hand.kinds.at(hand.kinds.size() - 2), "facility_paused")
      << "a kill between the two must not lead to another attempt";
  hand.moment.paused = "cancelled";
  EXPECT_TRUE(hand.action<Sleep>());
  hand.give(Woke{});
  EXPECT_TRUE(hand.action<Sleep>());
  hand.moment.paused.reset();
  hand.give(Woke{});
  EXPECT_TRUE(hand.action<Push>());
}

TEST(Course, TellsAFacilityOnceThatItsTimeIsOver) {
  Hand hand;
  hand.rules.waits_for_ever = false;
  hand.rules.deadline = hours(1);
  hand.to_the_job();
  hand.moment.since_first_submission = hours(2);
  hand.give(Looked{.reported = false, .status = {}});
  ASSERT_TRUE(hand.action<Fence>());
  hand.give(Unreachable{"down"});
  ASSERT_TRUE(hand.action<Finish>());
  EXPECT_EQ(hand.kinds.back(), "facility_missing");
  EXPECT_TRUE(hand.last.course.known.attempts.back().cancel_intended);  // told later
}

TEST(Course, WaitsLongerForAFacilityThatDoesNotAnswer) {
  EXPECT_LE(backoff("a", 1), seconds(5));
  EXPECT_GE(backoff("a", 1), milliseconds(2500));
  EXPECT_GE(backoff("a", 20), minutes(7));
  EXPECT_LE(backoff("a", 20), minutes(15));
  EXPECT_NE(backoff("a", 3), backoff("b", 3));  // not all facilities at once
}

TEST(Course, LooksOftenWhenSomethingIsAboutToHappen) {
  const Rules rules = Hand::usual_rules();
  EXPECT_EQ(look_interval(rules, seconds(0), {}), milliseconds(200));
  EXPECT_EQ(look_interval(rules, hours(2), {}), seconds(30));
  Rules expecting = rules;
  expecting.expected_training = seconds(3600);
  EXPECT_EQ(look_interval(expecting, hours(2), seconds(3598)), seconds(1));
  EXPECT_EQ(question_interval(rules, seconds(2), true), seconds(2));
  EXPECT_EQ(question_interval(rules, minutes(30), true), seconds(60));
  EXPECT_EQ(question_interval(rules, hours(3), true), seconds(300));
  EXPECT_EQ(question_interval(rules, hours(3), false), seconds(60));
}

}  // namespace
}  // namespace xffl::facility
