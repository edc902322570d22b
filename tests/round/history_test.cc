#include "xffl/round/history.h"

#include <gtest/gtest.h>

#include "xffl/base/error.h"

namespace xffl::round {
namespace {

using journal::Event;

Event event(std::string kind, int round, std::string facility, int attempt,
            std::string payload = "{}") {
  return {1, "", std::move(kind), round, std::move(facility), attempt, std::move(payload)};
}

std::vector<Event> begun() {
  return {event("run_created", 0, "", 0,
                R"({"run":"0001","secret":"s","project":"p","config_sha256":"c"})"),
          event("model_imported", 0, "", 0, R"({"model_sha256":"m0","master_sha256":"f0"})"),
          event("round_planned", 1, "", 0, R"({"facilities":["alba","brno"]})"),
          event("attempt_opened", 1, "alba", 1)};
}

const FacilityState& alba(const History& history) {
  return history.rounds.at(1).facilities.at(FacilityName("alba"));
}

TEST(History, KnowsWhatIsInDoubt) {
  auto events = begun();
  events.push_back(event("pushed", 1, "alba", 1));
  events.push_back(event("submit_intended", 1, "alba", 1));
  History history = replay(events);
  EXPECT_TRUE(alba(history).current()->submit_intended);
  EXPECT_TRUE(alba(history).current()->job_id.empty());
  apply(history, event("submitted", 1, "alba", 1, R"({"job_id":"42"})"));
  EXPECT_EQ(alba(history).current()->job_id, "42");
  EXPECT_EQ(history.done().rounds_published, 0);
  EXPECT_EQ(history.done().model_sha256, "m0");
}

TEST(History, ResumingGivesAMissingFacilityNewAttempts) {
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"r"})"));
  History history = replay(events);
  EXPECT_TRUE(alba(history).missing);
  apply(history, event("run_resumed", 0, "", 0));
  EXPECT_FALSE(alba(history).missing);
  EXPECT_EQ(alba(history).attempts_before_resume, 1);
}

TEST(History, AnEvaluationIsNoRoundThatIsDone) {
  auto events = begun();
  events.push_back(event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f1"})"));
  events.push_back(event("published", 1, "", 0));
  events.push_back(
      event("round_planned", 2, "", 0, R"({"facilities":["alba"],"evaluates":true})"));
  events.push_back(event("facility_missing", 2, "alba", 0, R"({"reason":"r"})"));
  History history = replay(events);
  EXPECT_FALSE(history.rounds.at(1).evaluates);
  EXPECT_TRUE(history.rounds.at(2).evaluates);
  EXPECT_EQ(history.done().rounds_published, 1);
  EXPECT_EQ(history.done().model_sha256, "m1");
  EXPECT_FALSE(history.done().run_completed);
  apply(history, event("run_resumed", 0, "", 0));
  EXPECT_FALSE(history.rounds.at(2).facilities.at(FacilityName("alba")).missing) << "tried again";
  apply(history, event("run_completed", 0, "", 0));
  EXPECT_TRUE(history.done().run_completed);
}

TEST(History, ResumingAfterTheFreezeChangesNobodysPart) {
  auto events = begun();
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"late"})"));
  events.push_back(event("participants_frozen", 1, "", 0, R"({"facilities":["brno"]})"));
  events.push_back(event("run_resumed", 0, "", 0));
  EXPECT_TRUE(alba(replay(events)).missing);
}

TEST(History, KnowsWhoseTrainingWasAcceptedInTheLastRound) {
  job::JobReport report;
  report.key = {"p", "0001", 1, "alba", 2, std::string(32, '0')};
  report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("attempt_opened", 1, "alba", 2));
  const Json accepted{{"update_sha256", report.update_sha256},
                      {"report", parse_json(job::format_job_report(report), "report")}};
  events.push_back(event("update_accepted", 1, "alba", 2, accepted.dump()));
  events.push_back(event("facility_missing", 1, "brno", 0, R"({"reason":"late"})"));
  History history = replay(events);
  EXPECT_TRUE(history.done().accepted.empty()) << "its round is not published";
  apply(history, event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f1"})"));
  apply(history, event("published", 1, "", 0));
  const std::map<FacilityName, int> expected{{FacilityName("alba"), 2}};
  EXPECT_EQ(history.done().accepted, expected);
}

TEST(History, RefusesWhatItDoesNotUnderstand) {
  auto unknown = begun();
  unknown.push_back(event("teleported", 1, "alba", 1));
  EXPECT_THROW(replay(unknown), Error);
  auto no_attempt = begun();
  no_attempt.push_back(event("pushed", 1, "brno", 1));
  EXPECT_THROW(replay(no_attempt), Error);
  auto malformed = begun();
  malformed.push_back(event("submitted", 1, "alba", 1, "{}"));
  EXPECT_THROW(replay(malformed), Error);
}

}  // namespace
}  // namespace xffl::round
