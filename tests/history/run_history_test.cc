#include "xffl/history/run_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl::history {
namespace {

using testing::HasSubstr;

StoredEvent event(std::string kind, int round, std::string facility, int attempt,
                  std::string payload = "{}") {
  return {1, "", std::move(kind), round, std::move(facility), attempt, std::move(payload)};
}

std::vector<StoredEvent> begun() {
  return {event("run_created", 0, "", 0,
                R"({"run":"0001","secret":"s","project":"p","config_sha256":"c"})"),
          event("model_imported", 0, "", 0, R"({"model_sha256":"m0","master_sha256":"f0"})"),
          event("round_planned", 1, "", 0, R"({"facilities":["alba","brno"]})"),
          event("attempt_opened", 1, "alba", 1)};
}

void apply(RunState& run_state, const StoredEvent& event) {
  history::apply(run_state, decode(event));
}

const FacilityState& alba(const RunState& run_state) {
  return run_state.rounds.at(1).facilities.at(FacilityName("alba"));
}

TEST(RunHistoryState, KnowsAnUnknownSubmission) {
  auto events = begun();
  events.push_back(event("pushed", 1, "alba", 1));
  events.push_back(event("submit_intended", 1, "alba", 1));
  RunState run_state = replay(events);
  EXPECT_TRUE(alba(run_state).current()->submit_intended);
  EXPECT_TRUE(alba(run_state).current()->job_id.empty());
  apply(run_state, event("submitted", 1, "alba", 1, R"({"job_id":"42"})"));
  EXPECT_EQ(alba(run_state).current()->job_id, "42");
  EXPECT_EQ(run_state.done().rounds_published, 0);
  EXPECT_EQ(run_state.done().model_sha256, "m0");
}

// A state and the events behind it need not fit into the memory together.
TEST(RunHistoryState, AReplayFreesTheEventsThatItMayKeep) {
  auto events = begun();
  events.push_back(event("pushed", 1, "alba", 1));
  const RunState kept = replay(events);
  EXPECT_EQ(events.back().kind, "pushed");
  std::vector<StoredEvent>&& given = std::move(events);
  const RunState freed = replay(std::move(given));
  for (const StoredEvent& event : given) EXPECT_TRUE(event.payload.empty()) << event.kind;
  EXPECT_EQ(freed.identity->secret, kept.identity->secret);
  EXPECT_TRUE(alba(freed).current()->pushed);
}

// The tag is a part of paths.
TEST(RunHistoryState, RefusesATagOfOtherCharacters) {
  const auto created = [](const std::string& tag) {
    return replay({event(
        "run_created", 0, "", 0,
        R"({"run":"0001","secret":"s","project":"p","config_sha256":"c","tag":")" + tag + "\"}")});
  };
  EXPECT_EQ(created("0123abcd").identity->unique_name(), "0001-0123abcd");
  for (const char* tag : {"../../ab", "0123abc", "0123abcde", "0123ABCD"})
    EXPECT_THAT(test::message_of(ErrorKind::kCorrupt, [&] { created(tag); }), HasSubstr("tag"))
        << tag;
}

// Later jobs, of other facilities and further attempts, do not move the round's deadline.
TEST(RunHistoryState, KeepsTheTimeOfTheRoundsFirstSubmission) {
  auto events = begun();
  events.push_back(event("attempt_opened", 1, "brno", 1));
  int minute = 10;
  for (const char* name : {"alba", "brno"}) {
    events.push_back(event("submit_intended", 1, name, 1));
    events.push_back(event("submitted", 1, name, 1, R"({"job_id":"42"})"));
    events.back().time_utc = "2026-01-01T00:" + std::to_string(minute++) + ":00.000Z";
  }
  EXPECT_EQ(replay(events).rounds.at(1).first_submission_utc, "2026-01-01T00:10:00.000Z");
}

// Nobody may be able to submit a job of the last model's evaluation.
TEST(RunHistoryState, TheDeadlineOfAnEvaluationCountsFromItsPlan) {
  auto events = begun();
  events.push_back(event("round_planned", 2, "", 0, R"({"facilities":["alba"],"evaluates":true})"));
  events.back().time_utc = "2026-01-01T00:10:00.000Z";
  EXPECT_EQ(replay(events).rounds.at(2).first_submission_utc, "2026-01-01T00:10:00.000Z");
  EXPECT_EQ(replay(events).rounds.at(1).first_submission_utc, "") << "a round of training";
  events.push_back(event("attempt_opened", 2, "alba", 1));
  events.push_back(event("submit_intended", 2, "alba", 1));
  events.push_back(event("submitted", 2, "alba", 1, R"({"job_id":"42"})"));
  events.back().time_utc = "2026-01-01T00:20:00.000Z";
  EXPECT_EQ(replay(events).rounds.at(2).first_submission_utc, "2026-01-01T00:10:00.000Z");
}

TEST(RunHistoryState, KnowsTheMembersOfTheRoundAndOfTheNext) {
  const FacilityName brno("brno"), cesis("cesis");
  RunState run_state = replay(begun());
  EXPECT_EQ(run_state.done().members, (std::set{FacilityName("alba"), brno}));
  EXPECT_TRUE(run_state.done().left.empty());
  apply(run_state, event("facility_left", 0, "brno", 0, R"({"reason":"r"})"));
  EXPECT_EQ(run_state.done().left, std::set{brno});
  EXPECT_TRUE(run_state.done().members.contains(brno)) << "the round in progress goes on";
  EXPECT_FALSE(run_state.left.at(brno).now);
  apply(run_state, event("facility_left", 0, "brno", 0, R"({"reason":"r","now":true})"));
  EXPECT_TRUE(run_state.left.at(brno).now);
  EXPECT_EQ(run_state.rounds.at(1).departed.at(brno), "r");
  apply(run_state, event("facility_joined", 0, "brno", 0));
  apply(run_state, event("facility_joined", 0, "cesis", 0));
  EXPECT_TRUE(run_state.rounds.at(1).departed.contains(brno)) << "it joins the next round";
  EXPECT_TRUE(run_state.done().left.empty());
  EXPECT_EQ(run_state.joined, (std::set{brno, cesis}));
  apply(run_state, event("facility_left", 0, "cesis", 0, R"({"reason":"r"})"));
  EXPECT_EQ(run_state.joined, std::set{brno});
}

TEST(RunHistoryState, AFacilityThatLeavesAtOnceLeavesTheRoundInProgress) {
  auto events = begun();
  events.push_back(event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f1"})"));
  events.push_back(event("published", 1, "", 0));
  events.push_back(event("round_planned", 2, "", 0, R"({"facilities":["alba","brno"]})"));
  events.push_back(event("facility_left", 0, "brno", 0, R"({"reason":"r","now":true})"));
  const RunState run_state = replay(events);
  EXPECT_TRUE(run_state.rounds.at(1).departed.empty());
  EXPECT_TRUE(run_state.rounds.at(2).departed.contains(FacilityName("brno")));
}

TEST(RunHistoryState, KeepsTheTimeOfAnUpdate) {
  RunState run_state = replay(begun());
  job::JobReport report;
  report.key = {"p", "0001", 1, "alba", 1, std::string(32, '0')};
  report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
  report.steps = report.samples = report.tokens = 1;
  report.trainer = "t";
  StoredEvent update =
      encode({.round = 1, .facility = FacilityName("alba"), .attempt = 1},
             UpdateAccepted{.update_sha256 = report.update_sha256, .report = report});
  update.time_utc = "2026-01-01T00:00:00Z";
  apply(run_state, update);
  EXPECT_EQ(alba(run_state).accepted->time_utc, "2026-01-01T00:00:00Z");
}

TEST(RunHistoryState, ResumingGivesAMissingFacilityNewAttempts) {
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"r"})"));
  RunState run_state = replay(events);
  EXPECT_TRUE(alba(run_state).missing);
  apply(run_state, event("run_resumed", 0, "", 0));
  EXPECT_FALSE(alba(run_state).missing);
  EXPECT_EQ(alba(run_state).attempts_before_renewal, 1);
}

// Earlier releases wrote run_resumed without keeps_budgets (above): their journals keep their
// meaning.
TEST(RunHistoryState, ARestartTriesAMissingFacilityAgainAndKeepsItsBudget) {
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"r"})"));
  events.push_back(event("run_resumed", 0, "", 0, R"({"keeps_budgets":true})"));
  RunState run_state = replay(events);
  EXPECT_FALSE(alba(run_state).missing);
  EXPECT_EQ(alba(run_state).attempts_before_renewal, 0);
  apply(run_state, event("facility_resumed", 0, "alba", 0));  // of an earlier release
  EXPECT_EQ(alba(run_state).attempts_before_renewal, 0);
  apply(run_state, event("facility_resumed", 0, "alba", 0, R"({"new_budget":true})"));
  EXPECT_EQ(alba(run_state).attempts_before_renewal, 1);
}

TEST(RunHistoryState, AChangedConfigurationRenewsTheBudgetsOfTheUnfinishedRound) {
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("config_changed", 0, "", 0, R"({"config_sha256":"c"})"));
  EXPECT_EQ(alba(replay(events)).attempts_before_renewal, 1);
  events.insert(events.end() - 1, event("participants_frozen", 1, "", 0, R"({"facilities":[]})"));
  events.insert(events.end() - 1,
                event("aggregated", 1, "", 0, R"({"model_sha256":"m","master_sha256":"f"})"));
  events.insert(events.end() - 1, event("published", 1, "", 0));
  EXPECT_EQ(alba(replay(events)).attempts_before_renewal, 0);
}

TEST(RunHistoryState, TheOpenAttemptBelongsToTheRenewedBudget) {
  auto events = begun();
  events.push_back(event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"));
  events.push_back(event("attempt_opened", 1, "alba", 2));
  events.push_back(event("config_changed", 0, "", 0, R"({"config_sha256":"c"})"));
  EXPECT_EQ(alba(replay(events)).attempts_before_renewal, 1);
}

// A supervisor that restarts the coordinator in a loop must not move the deadline.
TEST(RunHistoryState, ResumingAFailedRoundRestartsItsDeadline) {
  auto events = begun();
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"r"})"));
  events.push_back(event("attempt_opened", 1, "brno", 1));
  events.push_back(event("submit_intended", 1, "brno", 1));
  events.push_back(event("submitted", 1, "brno", 1, R"({"job_id":"42"})"));
  events.back().time_utc = "2026-01-01T00:00:00Z";
  for (const bool has_reason : {false, true}) {
    auto ended = events;  // by SIGKILL, or by SIGTERM
    if (has_reason)
      ended.push_back(event("run_stopped", 0, "", 0, R"({"kind":"cancelled","reason":"r"})"));
    for (const char* restart : {"2026-01-01T05:00:00Z", "2026-01-01T10:00:00Z"}) {
      ended.push_back(event("run_resumed", 0, "", 0, R"({"keeps_budgets":true})"));
      ended.back().time_utc = restart;
    }
    EXPECT_EQ(replay(ended).rounds.at(1).first_submission_utc, "2026-01-01T00:00:00Z");
    EXPECT_FALSE(alba(replay(ended)).missing) << "the facility is tried again";
  }
  events.push_back(event("run_stopped", 0, "", 0, R"({"kind":"failed","reason":"no quorum"})"));
  events.push_back(event("run_resumed", 0, "", 0));
  events.back().time_utc = "2026-01-02T00:00:00Z";
  EXPECT_EQ(replay(events).rounds.at(1).first_submission_utc, "2026-01-02T00:00:00Z");
  events[4] = event("round_planned", 1, "", 0, R"({"facilities":["alba","brno"]})");
  EXPECT_EQ(replay(events).rounds.at(1).first_submission_utc, "2026-01-01T00:00:00Z")
      << "no facility was given up";
}

// Its deadline would pass before a facility can submit a job.
TEST(RunHistoryState, ResumingAFailedRoundWithoutASubmissionStartsNoDeadline) {
  auto events = begun();
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"r"})"));
  events.push_back(event("run_stopped", 0, "", 0, R"({"kind":"failed","reason":"no quorum"})"));
  events.push_back(event("run_resumed", 0, "", 0));
  events.back().time_utc = "2026-01-02T00:00:00Z";
  EXPECT_EQ(replay(events).rounds.at(1).first_submission_utc, "");
}

TEST(RunHistoryState, KeepsTheReasonOfAStopUntilTheRunResumes) {
  RunState run_state = replay(begun());
  EXPECT_FALSE(run_state.stopped);
  apply(run_state,
        event("run_stopped", 0, "", 0, R"({"kind":"failed","reason":"alba is missing"})"));
  apply(run_state, event("facility_paused", 0, "alba", 0, R"({"reason":"by a user"})"));
  ASSERT_TRUE(run_state.stopped);
  EXPECT_EQ(run_state.stopped->kind, "failed");
  EXPECT_EQ(run_state.stopped->reason, "alba is missing");
  apply(run_state, event("run_resumed", 0, "", 0));
  EXPECT_FALSE(run_state.stopped);
}

TEST(RunHistoryState, ALostUpdateOpensItsRoundAgain) {
  auto events = begun();
  events.push_back(event("submit_intended", 1, "alba", 1));
  events.push_back(event("submitted", 1, "alba", 1, R"({"job_id":"42"})"));
  RunState run_state = replay(events);
  run_state.rounds.at(1).facilities.at(FacilityName("alba")).accepted =
      Accepted{FacilityName("alba"), 1, "u", {}};
  apply(run_state, event("participants_frozen", 1, "", 0, R"({"facilities":["alba","brno"]})"));
  apply(run_state, event("update_lost", 1, "alba", 1, R"({"reason":"rotten"})"));
  EXPECT_FALSE(alba(run_state).accepted);
  EXPECT_EQ(alba(run_state).current()->failure, "rotten");
  EXPECT_FALSE(alba(run_state).current()->counts_as_attempt);
  EXPECT_TRUE(run_state.rounds.at(1).participants.empty());
  apply(run_state, event("attempt_opened", 1, "alba", 2));
  EXPECT_THROW(apply(run_state, event("update_lost", 1, "alba", 2, R"({"reason":"r"})")), Error);
}

TEST(RunHistoryState, AnEvaluationIsNoPublishedRound) {
  auto events = begun();
  events.push_back(event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f1"})"));
  events.push_back(event("published", 1, "", 0));
  events.push_back(event("round_planned", 2, "", 0, R"({"facilities":["alba"],"evaluates":true})"));
  events.push_back(event("facility_missing", 2, "alba", 0, R"({"reason":"r"})"));
  RunState run_state = replay(events);
  EXPECT_FALSE(run_state.rounds.at(1).evaluates);
  EXPECT_TRUE(run_state.rounds.at(2).evaluates);
  EXPECT_EQ(run_state.done().rounds_published, 1);
  EXPECT_EQ(run_state.done().model_sha256, "m1");
  EXPECT_FALSE(run_state.done().run_completed);
  apply(run_state, event("run_resumed", 0, "", 0));
  EXPECT_FALSE(run_state.rounds.at(2).facilities.at(FacilityName("alba")).missing) << "tried again";
  apply(run_state, event("run_completed", 0, "", 0));
  EXPECT_TRUE(run_state.done().run_completed);
}

TEST(RunHistoryState, ResumingAfterTheFreezeChangesNoFacility) {
  auto events = begun();
  events.push_back(event("facility_missing", 1, "alba", 0, R"({"reason":"late"})"));
  events.push_back(event("participants_frozen", 1, "", 0, R"({"facilities":["brno"]})"));
  events.push_back(event("run_resumed", 0, "", 0));
  EXPECT_TRUE(alba(replay(events)).missing);
}

TEST(RunHistoryState, KnowsTheAcceptedAttemptsOfTheLastRound) {
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
  RunState run_state = replay(events);
  EXPECT_TRUE(run_state.done().accepted.empty()) << "its round is not published";
  apply(run_state, event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f1"})"));
  apply(run_state, event("published", 1, "", 0));
  const std::map<FacilityName, int> expected{{FacilityName("alba"), 2}};
  EXPECT_EQ(run_state.done().accepted, expected);
}

// A newer xffl continues a run. Never change that file: its rows are in the journals of users out
// there.
TEST(RunHistoryState, ReadsTheJournalsOfEarlierReleases) {
  const test::TempDir dir;
  std::filesystem::copy_file(XFFL_SOURCE_DIR "/tests/golden/journal/journal.jsonl",
                             dir / "journal.jsonl");
  EXPECT_EQ(history::repair(dir / "journal.db").events, 43) << "hashed as it was then";
  const RunState run_state = replay(history::read_events(dir / "journal.db"));
  EXPECT_EQ(run_state.project, "golden");
  EXPECT_TRUE(run_state.completed);
  EXPECT_FALSE(run_state.cancelled);
  EXPECT_TRUE(run_state.paused.empty());
  EXPECT_EQ(run_state.done().rounds_published, 2);
  EXPECT_EQ(run_state.rounds.at(1).participant_names(), (std::vector<std::string>{"alba", "brno"}));
  EXPECT_EQ(run_state.rounds.at(2).participant_names(), std::vector<std::string>{"alba"});
  ASSERT_EQ(alba(run_state).attempts.size(), 2u);
  EXPECT_TRUE(alba(run_state).attempts[0].failure);
  EXPECT_EQ(alba(run_state).accepted->attempt, 2);
  EXPECT_EQ(alba(run_state).accepted->report.tokens, 24);
  const FacilityState& brno = run_state.rounds.at(2).facilities.at(FacilityName("brno"));
  EXPECT_NE(brno.missing->find("nan"), std::string::npos);
  EXPECT_FALSE(brno.current()->cancel_intended);
}

// Impossible events: another program wrote the journal, or xffl has a bug.
TEST(RunHistoryState, RejectsImpossibleEvents) {
  const auto refuses = [](std::vector<StoredEvent> more) {
    auto events = begun();
    events.insert(events.end(), more.begin(), more.end());
    return test::kind_of([&] { replay(events); }) == ErrorKind::kCorrupt;
  };
  const StoredEvent intended = event("submit_intended", 1, "alba", 1);
  const StoredEvent submitted = event("submitted", 1, "alba", 1, R"({"job_id":"42"})");
  const StoredEvent failed = event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})");
  EXPECT_TRUE(refuses({begun()[0]})) << "a run is created once";
  EXPECT_TRUE(refuses({submitted})) << "an intent comes first";
  EXPECT_TRUE(refuses({event("attempt_opened", 1, "alba", 2)})) << "the first one is open";
  EXPECT_TRUE(refuses({failed, event("attempt_opened", 1, "alba", 3)})) << "the next is the second";
  EXPECT_TRUE(refuses({intended, failed, submitted})) << "the attempt has failed";
  EXPECT_TRUE(refuses({event("published", 1, "", 0)})) << "nothing was aggregated";
  const StoredEvent aggregated =
      event("aggregated", 1, "", 0, R"({"model_sha256":"m","master_sha256":"f"})");
  EXPECT_TRUE(refuses({aggregated, event("published", 1, "", 0), event("published", 1, "", 0)}));
  EXPECT_TRUE(
      refuses({event("aggregated", 2, "", 0, aggregated.payload), event("published", 2, "", 0)}))
      << "round 1 comes first";
}

// Hashes that the journal repeats must agree.
TEST(RunHistoryState, RejectsAnotherModelOrReportThanTheRecordedOne) {
  const auto refusal = [](std::vector<StoredEvent> more) {
    auto events = begun();
    events.insert(events.end(), more.begin(), more.end());
    return test::message_of(ErrorKind::kCorrupt, [&] { replay(events); });
  };
  const StoredEvent aggregated =
      event("aggregated", 1, "", 0, R"({"model_sha256":"m1","master_sha256":"f"})");
  EXPECT_THAT(refusal({event("round_planned", 1, "", 0,
                             R"({"facilities":["alba"],"base_sha256":"m9","plan_sha256":"p"})")}),
              HasSubstr("the last published model was m0, not m9"));
  EXPECT_THAT(refusal({aggregated, event("published", 1, "", 0, R"({"model_sha256":"m9"})")}),
              HasSubstr("the round's model was m1, not m9"));
  EXPECT_THAT(refusal({event("run_completed", 0, "", 0, R"({"model_sha256":"m9"})")}),
              HasSubstr("the last published model was m0, not m9"));
  EXPECT_THAT(refusal({event("participants_frozen", 1, "", 0,
                             R"({"facilities":["alba"],"updates":["u"],"weights":[1.0,2.0]})")}),
              HasSubstr("its lists differ in length"));

  job::JobReport report;
  report.key = {"p", "0001", 1, "alba", 2, std::string(32, '1')};
  report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
  const Json accepted{{"update_sha256", report.update_sha256},
                      {"report", parse_json(job::format_job_report(report), "report")}};
  EXPECT_THAT(
      refusal({event("attempt_failed", 1, "alba", 1, R"({"reason":"r"})"),
               event("attempt_opened", 1, "alba", 2, Json{{"nonce", std::string(32, '2')}}.dump()),
               event("update_accepted", 1, "alba", 2, accepted.dump())}),
      HasSubstr("its report answers another attempt"));
}

TEST(RunHistoryState, RejectsUnknownKindsAndPayloads) {
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
}  // namespace xffl::history
