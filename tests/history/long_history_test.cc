// A run of many rounds: the memory of the coordinator's history and the work per event.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <thread>

#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

std::string model(int round) { return "m" + std::to_string(round); }

class LongHistory : public testing::Test {
 protected:
  LongHistory() { open(); }

  void open() {
    history_.reset();
    history_.emplace(dir_ / "journal.db");
  }
  void begin() {
    history_->record({}, RunCreated{RunName("0001"), "p", "s", "", "c"});
    history_->record({}, ModelImported{model(0), "f0", ""});
  }
  job::JobReport report(int round, const FacilityName& name) {
    job::JobReport report;
    report.key = {"p", "0001", round, name.str(), 1, std::string(32, '1')};
    report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
    report.tokens = round;
    return report;
  }
  void train(int round, const FacilityName& name, bool leaves_a_job = false) {
    const EventScope scope{round, name, 1};
    history_->record(scope, AttemptOpened{std::string(32, '1')});
    history_->record(scope, SubmitIntended{"job", "s"});
    history_->record(scope, Submitted{JobId(std::to_string(round)), false, {}});
    if (!leaves_a_job)
      return history_->record(scope, UpdateAccepted{std::string(64, 'a'), report(round, name), 0});
    history_->record(scope, CancelIntended{});
    history_->record(scope, AttemptFailed{"late", {}, {}, ""});
    history_->record({round, name, 0}, FacilityMissing{"late"});
  }
  void round(int number, bool brno_leaves_a_job = false) {
    history_->record({number}, RoundPlanned{model(number - 1), "p", {kAlba, kBrno}, false});
    train(number, kAlba);
    train(number, kBrno, brno_leaves_a_job);
    history_->record({number}, ParticipantsFrozen{{kAlba}, {std::string(64, 'a')}, {1.0}});
    history_->record({number}, Aggregated{model(number), "f"});
    history_->record({number}, Published{model(number)});
  }
  RunState replayed() const { return replay(read_events(dir_ / "journal.db")); }

  // Every accessor gives the replayed journal's answer.
  void expect_whole(int rounds) {
    const RunState whole = replayed();
    EXPECT_EQ(history_->done().rounds_published, rounds);
    EXPECT_EQ(history_->done().model_sha256, model(rounds));
    for (int number = 1; number <= rounds; ++number) {
      const RoundState& known = whole.rounds.at(number);
      const RoundState round = history_->round(number);
      EXPECT_TRUE(round.published) << number;
      EXPECT_EQ(round.model_sha256, known.model_sha256);
      EXPECT_EQ(round.first_submission_utc, known.first_submission_utc);
      EXPECT_EQ(round.participant_names(), known.participant_names());
      EXPECT_EQ(history_->model_sha256(number), model(number));
      for (const FacilityName& name : {kAlba, kBrno}) {
        const FacilityState& then = known.facilities.at(name);
        for (const FacilityState& now :
             {history_->facility(number, name), round.facilities.at(name)}) {
          ASSERT_EQ(now.attempts.size(), then.attempts.size());
          EXPECT_EQ(now.attempts[0].job_id, then.attempts[0].job_id);
          EXPECT_EQ(now.attempts[0].failure, then.attempts[0].failure);
          EXPECT_EQ(now.attempts[0].cancel_intended, then.attempts[0].cancel_intended);
          EXPECT_EQ(now.attempts_before_renewal, then.attempts_before_renewal);
          EXPECT_EQ(now.missing, then.missing);
          EXPECT_EQ(now.accepted.has_value(), then.accepted.has_value());
          if (then.accepted) {
            EXPECT_EQ(now.accepted->report.tokens, then.accepted->report.tokens);
          }
        }
      }
    }
  }

  inline static const FacilityName kAlba{"alba"}, kBrno{"brno"};
  const test::TempDir dir_;
  std::optional<RunHistory> history_;
};

TEST_F(LongHistory, HoldsTheNewestRoundsAndReadsOlderOnesFromTheJournal) {
  begin();
  for (int number = 1; number <= 12; ++number) {
    round(number);
    EXPECT_LE(history_->state().rounds.size(), 2u) << "after round " << number;
  }
  expect_whole(12);
  EXPECT_EQ(history_->model_sha256(0), model(0));
  EXPECT_TRUE(history_->round(99).facilities.empty());
  EXPECT_TRUE(history_->facility(3, FacilityName("cluj")).attempts.empty());
  open();
  EXPECT_LE(history_->state().rounds.size(), 2u) << "after a restart";
  expect_whole(12);
}

TEST_F(LongHistory, ALaterSubmissionDoesNotMoveTheRoundsDeadline) {
  begin();
  history_->record({1}, RoundPlanned{model(0), "p", {kAlba, kBrno}, false});
  train(1, kAlba);
  const std::string first = history_->round(1).first_submission_utc;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the journal counts them
  train(1, kBrno);
  EXPECT_EQ(history_->round(1).first_submission_utc, first);
  EXPECT_EQ(replayed().rounds.at(1).first_submission_utc, first);
}

TEST_F(LongHistory, KeepsARoundUntilItsCancellationIsConfirmed) {
  begin();
  round(1, true);
  for (int number = 2; number <= 6; ++number) round(number);
  for (const bool restarts : {false, true}) {
    if (restarts) open();
    const auto open_ones = history_->unconfirmed_cancellations(kBrno, 7);
    ASSERT_EQ(open_ones.size(), 1u);
    EXPECT_EQ(open_ones[0].round, 1);
    EXPECT_EQ(open_ones[0].job_id, "1");
    EXPECT_TRUE(history_->unconfirmed_cancellations(kAlba, 7).empty());
    EXPECT_TRUE(history_->unconfirmed_cancellations(kBrno, 1).empty());
    EXPECT_EQ(history_->unconfirmed_cancellations(kBrno, 2).size(), 1u) << "of the round before";
  }
  history_->record({1, kBrno, 1}, CancelConfirmed{});
  EXPECT_TRUE(history_->unconfirmed_cancellations(kBrno, 7).empty());
  round(7);
  EXPECT_LE(history_->state().rounds.size(), 2u);
  expect_whole(7);
}

// The events of a forgotten round that come late: applied, refused, and found again.
TEST_F(LongHistory, TakesALateEventOfAnOldRound) {
  begin();
  for (int number = 1; number <= 5; ++number) round(number);
  EXPECT_EQ(test::kind_of([&] {
              history_->record({2, kAlba, 7}, CancelIntended{});
            }),
            ErrorKind::kCorrupt);
  history_->record({2, kAlba, 1}, CancelIntended{});
  round(6);
  EXPECT_EQ(history_->unconfirmed_cancellations(kAlba, 7).size(), 1u);
  open();
  EXPECT_EQ(history_->unconfirmed_cancellations(kAlba, 7).size(), 1u);
  history_->record({2, kAlba, 1}, CancelConfirmed{});
  round(7);
  expect_whole(7);
  open();
  expect_whole(7);
}

TEST_F(LongHistory, RefusesAnEventThatCannotFollowBeforeItIsOnDisk) {
  begin();
  for (int number = 1; number <= 4; ++number) round(number);
  const size_t events = read_events(dir_ / "journal.db").size();
  const auto refused = [&](const EventScope& scope, const Event& event) {
    return test::kind_of([&] { history_->record(scope, event); }) == ErrorKind::kCorrupt;
  };
  EXPECT_TRUE(refused({5}, Published{model(5)}));
  EXPECT_TRUE(refused({4}, Published{model(4)})) << "published before";
  EXPECT_TRUE(refused({5, kAlba, 1}, Submitted{JobId("1"), false, {}}));
  EXPECT_TRUE(refused({1, kAlba, 2}, AttemptOpened{"n"})) << "its update was accepted";
  EXPECT_TRUE(refused({1, kAlba, 1}, UpdateLost{"r"})) << "its round has ended";
  EXPECT_TRUE(refused({5}, RoundPlanned{model(3), "p", {kAlba}, false}));
  EXPECT_EQ(read_events(dir_ / "journal.db").size(), events);
  round(5);
  expect_whole(5);
}

TEST_F(LongHistory, AResumptionInAnOldRoundIsRemembered) {
  begin();
  history_->record({1}, RoundPlanned{model(0), "p", {kAlba, kBrno}, false});
  train(1, kAlba);
  train(1, kBrno, true);
  history_->record({}, RunResumed{});
  history_->record({1, kBrno, 1}, CancelConfirmed{});
  history_->record({1}, ParticipantsFrozen{{kAlba}, {std::string(64, 'a')}, {1.0}});
  history_->record({1}, Aggregated{model(1), "f"});
  history_->record({1}, Published{model(1)});
  for (int number = 2; number <= 5; ++number) round(number);
  EXPECT_EQ(history_->facility(1, kBrno).attempts_before_renewal, 1);
  EXPECT_FALSE(history_->facility(1, kBrno).missing);
  expect_whole(5);
}

// --- The newest rounds, for a reader ---

TEST_F(LongHistory, AReaderGetsTheNewestRounds) {
  begin();
  history_->record({0, kBrno, 0}, FacilityPaused{"by hand"});
  for (int number = 1; number <= 9; ++number) round(number);
  history_->record({2, kAlba, 1}, CancelIntended{});  // late
  const RunState whole = replayed();
  for (const int rounds : {1, 2, 4, 8, 9, 20}) {
    const RunState newest = read_newest(dir_ / "journal.db", {.rounds = rounds});
    const int first = std::max(1, 9 - std::max(rounds, 2) + 1);
    EXPECT_EQ(newest.project, "p");
    EXPECT_EQ(newest.identity->secret, "s");
    EXPECT_EQ(newest.initial_sha256, model(0));
    EXPECT_EQ(newest.paused, whole.paused);
    EXPECT_EQ(newest.done().rounds_published, 9);
    EXPECT_EQ(newest.done().model_sha256, model(9));
    EXPECT_EQ(newest.done().accepted, whole.done().accepted);
    EXPECT_EQ(newest.rounds.begin()->first, std::max(1, first - 1));
    for (int number = first; number <= 9; ++number) {
      const FacilityState& state = newest.rounds.at(number).facilities.at(kAlba);
      EXPECT_EQ(state.accepted->report.tokens, number);
    }
  }
  EXPECT_EQ(read_newest(dir_ / "journal.db", {.rounds = 20, .events = 1}).rounds.size(), 3u)
      << "two whole rounds, and the model before";
}

TEST_F(LongHistory, AReaderOfANewJournalGetsNothing) {
  EXPECT_FALSE(read_newest(dir_ / "journal.db").identity);
  begin();
  EXPECT_TRUE(read_newest(dir_ / "journal.db").identity);
  history_->record({1}, RoundPlanned{model(0), "p", {kAlba, kBrno}, false});
  EXPECT_EQ(read_newest(dir_ / "journal.db").rounds.at(1).facilities.size(), 2u);
}

// --- The mirror at the opening ---

class MirrorAtOpening : public LongHistory {
 protected:
  MirrorAtOpening() {
    begin();
    round(1);
    history_.reset();
  }
  std::string text() const { return read_file(mirror_, 1 << 20); }

  const fs::path mirror_ = dir_ / "journal.jsonl";
};

// A coordinator that was frozen right after its last event reached the database, and has lost its
// run since, appends the event's line.
TEST_F(MirrorAtOpening, HasNoLateLineOfAStaleCoordinator) {
  const std::string whole = text();
  const UniqueFd stale = open_file(mirror_, O_WRONLY | O_APPEND);
  open();
  const std::string last = whole.substr(whole.rfind('\n', whole.size() - 2) + 1);
  write_all(stale.get(), std::as_bytes(std::span(last)), mirror_);
  EXPECT_EQ(text(), whole);
  round(2);
  EXPECT_TRUE(text().starts_with(whole));
  const auto events = read_events(dir_ / "journal.db").size();
  history_.reset();
  fs::remove(dir_ / "journal.db");
  EXPECT_EQ(repair(dir_ / "journal.db").events, static_cast<int64_t>(events));
}

TEST_F(MirrorAtOpening, GetsTheMissingEvents) {
  const std::string whole = text();
  for (const size_t size : {whole.size() - 1, whole.size() - 100, whole.size() / 2, size_t{0}}) {
    fs::resize_file(mirror_, size);
    open();
    EXPECT_EQ(text(), whole) << size;
  }
}

TEST_F(MirrorAtOpening, IsMadeAgainWhenItIsDamagedOrGone) {
  const std::string whole = text();
  std::string damaged = whole;
  damaged[whole.size() / 2] ^= 1;
  write_file_atomic(mirror_, damaged);
  open();
  EXPECT_EQ(text(), whole);
  history_.reset();
  fs::remove(mirror_);
  open();
  EXPECT_EQ(text(), whole);
}

// As an earlier release may have written it.
TEST_F(MirrorAtOpening, KeepsLinesInOtherBytes) {
  std::string other = text();
  other.insert(other.find(':') + 1, " ");
  write_file_atomic(mirror_, other);
  open();
  EXPECT_EQ(text(), other);
  round(2);
  EXPECT_TRUE(text().starts_with(other));
  open();
  fs::remove(dir_ / "journal.db");
  history_.reset();
  EXPECT_GT(repair(dir_ / "journal.db").events, 20);
}

}  // namespace
}  // namespace xffl::history
