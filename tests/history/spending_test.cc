#include "xffl/history/spending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/temp_dir.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

constexpr int64_t kBegin = 1'772'366'400;
const FacilityName kAlba("alba"), kBrno("brno");

job::JobStart start_at(int64_t seconds, int nodes = 2) {
  job::JobStart start;
  start.job = "41";
  start.start = kBegin + seconds;
  start.nodes = nodes;
  return start;
}
job::JobStart ended(int64_t from, int64_t to) {
  job::JobStart start = start_at(from);
  start.end = kBegin + to;
  return start;
}

// Jobs of two nodes and 1,000 s of walltime at alba: 2,000 node-seconds each.
class SpendingTest : public testing::Test {
 protected:
  void add(const FacilityName& facility, int round, int attempt, const Event& event) {
    spending_.add({.seq = 1,
                   .time_utc = time_utc_,
                   .scope = {.round = round, .facility = facility, .attempt = attempt},
                   .event = event});
  }
  void intend(int round, int attempt = 1, int64_t keep_s = 0, const FacilityName& at = kAlba,
              int64_t walltime_s = 1000) {
    add(at, round, attempt,
        SubmitIntended{.job_name = "j",
                       .script_sha256 = "s",
                       .nodes = 2,
                       .walltime_s = walltime_s,
                       .keep_s = keep_s});
  }
  void submit(int round, int attempt, const std::string& job, const FacilityName& at = kAlba) {
    add(at, round, attempt, Submitted{.job_id = JobId(job)});
  }
  void accept(int round, int attempt, const std::optional<job::JobUsage>& usage,
              double report_seconds = 0) {
    UpdateAccepted update;
    update.report.total_seconds = report_seconds;
    update.usage = usage;
    add(kAlba, round, attempt, update);
  }
  void fail(int round, int attempt, const std::optional<job::JobUsage>& usage) {
    add(kAlba, round, attempt, AttemptFailed{.reason = "r", .output = "", .usage = usage});
  }
  static job::JobUsage times(std::vector<job::JobStart> starts) {
    return {.clock_offset = {}, .clock_error = {}, .starts = std::move(starts)};
  }
  double alba() const { return spending_.node_seconds(kAlba); }

  Spending spending_;
  std::string time_utc_;  // of the next events
};

// A node's clock that steps from 1970, or a hostile text, would use up the budget of all
// facilities.
TEST_F(SpendingTest, AStartUsesNoMoreThanItsReservation) {
  intend(1);
  submit(1, 1, "41");
  accept(1, 1, times({ended(-kBegin, 100)}));
  EXPECT_EQ(alba(), 2000);
  intend(2);
  submit(2, 1, "42");
  job::JobStart wide = ended(0, 100);
  wide.nodes = 1 << 20;
  accept(2, 1, times({wide}));
  EXPECT_EQ(alba(), 4000);
}

// A hostile facility's text, or a clock that steps back, would free the budget of all.
TEST_F(SpendingTest, AJobThatEndsBeforeItBeginsGivesNothingBack) {
  intend(1);
  submit(1, 1, "41");
  accept(1, 1, times({ended(0, 100)}));
  intend(2);
  submit(2, 1, "42");
  accept(2, 1, times({ended(5000, 0)}));
  EXPECT_EQ(alba(), 200);
  intend(3, 1, 300);
  submit(3, 1, "43");
  job::JobStart first = start_at(0);
  first.offered = kBegin + 100;
  accept(3, 1, times({first}));
  intend(4);
  submit(4, 1, "43");
  job::JobStart second = ended(50, 250);
  second.handover = 1;
  accept(4, 1, times({second}));
  EXPECT_EQ(alba(), 200 + 2 * (100 + 200)) << "no idle time before the offer";
}

// A hostile facility's text has up to 1,000 starts, which would use up the budget of all.
TEST_F(SpendingTest, TheStartsOfAJobUseNoMoreThanItsNodesSinceTheSubmission) {
  const std::vector<job::JobStart> forged(1000, ended(0, 1000));
  double expected = 0;
  for (const int64_t walltime_s : {1000, 0}) {
    const int round = walltime_s > 0 ? 1 : 2;
    time_utc_ = "2026-03-01T12:00:00.000Z";
    intend(round, 1, 0, kAlba, walltime_s);
    submit(round, 1, "41");
    time_utc_ = "2026-03-01T13:00:00.000Z";
    accept(round, 1, times(forged));
    expected += 2 * (3600 + 15);
    EXPECT_EQ(alba(), expected) << walltime_s;
  }
  time_utc_ = "2026-03-01T12:00:00.000Z";
  intend(3);
  submit(3, 1, "43");
  time_utc_ = "2026-03-01T12:05:00.000Z";
  std::vector<job::JobStart> starts = forged;
  starts.push_back(start_at(1000));  // its end is not known
  fail(3, 1, times(starts));
  EXPECT_EQ(alba(), expected + 2000 + 2000);
}

TEST_F(SpendingTest, CountsTheWholeWalltimeFromTheIntentToTheEnd) {
  EXPECT_EQ(alba(), 0);
  intend(1);
  EXPECT_EQ(alba(), 2000);
  submit(1, 1, "41");
  EXPECT_EQ(alba(), 2000);
  accept(1, 1, times({ended(0, 100)}));
  EXPECT_EQ(alba(), 200);
  intend(2);
  EXPECT_EQ(alba(), 2200);
}

TEST_F(SpendingTest, AddsTheFacilities) {
  intend(1);
  intend(1, 1, 0, kBrno);
  EXPECT_EQ(spending_.node_seconds(kBrno), 2000);
  EXPECT_EQ(spending_.node_seconds(), 4000);
  EXPECT_EQ(spending_.node_seconds(FacilityName("cork")), 0);
}

TEST_F(SpendingTest, CountsAJobWithoutTimesAsAWholeWalltime) {
  intend(1);
  submit(1, 1, "41");
  fail(1, 1, std::nullopt);
  EXPECT_EQ(alba(), 2000) << "the facility did not answer";
  intend(1, 2);
  submit(1, 2, "42");
  fail(1, 2, times({}));
  EXPECT_EQ(alba(), 2000) << "a job that was cancelled in the queue used nothing";
  intend(1, 3);
  fail(1, 3, std::nullopt);
  EXPECT_EQ(alba(), 2000) << "sbatch rejected the script: there was no job";
  intend(1, 4);
  submit(1, 4, "44");
  accept(1, 4, std::nullopt, 300);
  EXPECT_EQ(alba(), 4000) << "a job of another template, although it has a report";
  intend(1, 5);
  submit(1, 5, "45");
  accept(1, 5, times({}), 300);
  EXPECT_EQ(alba(), 6000) << "the facility hides the times of a job that has a report";
}

TEST_F(SpendingTest, CountsEachStartOfARequeuedJob) {
  intend(1);
  submit(1, 1, "41");
  job::JobStart killed = start_at(0);
  killed.last_beat = kBegin + 60;
  accept(1, 1, times({killed, ended(500, 600)}));
  EXPECT_EQ(alba(), 2 * (60 + 15 + 100)) << "the killed start ran up to 15 s on";
  intend(2);
  submit(2, 1, "42");
  fail(2, 1, times({start_at(0)}));
  EXPECT_EQ(alba(), 350 + 2000) << "no end is known";
  intend(3);
  submit(3, 1, "43");
  accept(3, 1, times({start_at(0), ended(500, 600)}));
  EXPECT_EQ(alba(), 350 + 2000 + 2000 + 2 * 100) << "the end of its first start is not known";
}

TEST_F(SpendingTest, CountsAJobOfUnknownEndAsAWholeWalltime) {
  intend(1);
  submit(1, 1, "41");
  job::JobStart unseen = start_at(0);
  unseen.last_beat = kBegin + 60;
  add(kAlba, 1, 1,
      AttemptFailed{.reason = "r", .output = "", .usage = times({unseen}), .job_may_run = true});
  EXPECT_EQ(alba(), 2000) << "the controller forgot a job that runs on";
  intend(2);
  submit(2, 1, "42");
  add(kAlba, 2, 1,
      AttemptFailed{.reason = "r", .output = "", .usage = times({}), .job_may_run = true});
  EXPECT_EQ(alba(), 4000) << "one in the queue may still start";
}

// A job that may still run counts as a whole.
TEST_F(SpendingTest, CountsAnUnconfirmedCancellationAsAWholeWalltime) {
  intend(1);
  submit(1, 1, "41");
  add(kAlba, 1, 1, CancelIntended{});
  fail(1, 1, times({ended(0, 100)}));
  EXPECT_EQ(alba(), 2000);
  intend(2);
  submit(2, 1, "42");
  EXPECT_EQ(alba(), 4000);
  add(kAlba, 1, 1, CancelConfirmed{});
  EXPECT_EQ(alba(), 2200);
  add(kAlba, 2, 1, CancelIntended{});
  add(kAlba, 2, 1, CancelConfirmed{});
  EXPECT_EQ(alba(), 2200) << "its times come with the failure";
  fail(2, 1, times({ended(0, 50)}));
  EXPECT_EQ(alba(), 300);
  intend(3);
  submit(3, 1, "43");
  add(kAlba, 3, 1, CancelIntended{});
  job::JobStart running = start_at(0);
  running.last_beat = kBegin + 60;
  fail(3, 1, times({running}));
  add(kAlba, 3, 1, CancelConfirmed{});
  EXPECT_EQ(alba(), 300 + 2000) << "it ran on after that heartbeat";
}

// One allocation of 1,000 s trains two rounds.
TEST_F(SpendingTest, CountsAKeptAllocationOnce) {
  intend(1, 1, 300);
  submit(1, 1, "41");
  job::JobStart first = start_at(0);
  first.offered = kBegin + 100;
  accept(1, 1, times({first}));
  EXPECT_EQ(alba(), 2 * (100 + 300)) << "it may wait for its whole offer";
  intend(2, 1, 300, kAlba, 500);
  EXPECT_EQ(alba(), 800 + 1000) << "another job, or the same";
  submit(2, 1, "41");
  EXPECT_EQ(alba(), 2000) << "the same: one walltime, that of its submission";
  job::JobStart second = ended(150, 250);
  second.handover = 1;
  accept(2, 1, times({second}));
  EXPECT_EQ(alba(), 2 * 250) << "from its first start, with the idle time";
}

// The end of its first attempt is not known: neither is the idle time after it.
TEST_F(SpendingTest, CountsNoIdleTimeOfAKeptAllocationAfterAnUnknownEnd) {
  intend(1, 1, 300);
  submit(1, 1, "41");
  accept(1, 1, std::nullopt, 100);
  EXPECT_EQ(alba(), 2000);
  intend(2, 1, 300);
  submit(2, 1, "41");
  job::JobStart second = ended(150, 250);
  second.handover = 1;
  accept(2, 1, times({second}));
  EXPECT_EQ(alba(), 2000 + 2 * 100);
}

// Its starts may use the time since its first submission, not since its last one.
TEST_F(SpendingTest, CountsAKeptAllocationThatWasRequeuedFromItsFirstSubmission) {
  time_utc_ = "2026-03-01T12:00:00.000Z";
  intend(1, 1, 300);
  submit(1, 1, "41");
  job::JobStart again = start_at(1000);
  again.offered = kBegin + 1900;
  time_utc_ = "2026-03-01T12:40:00.000Z";
  accept(1, 1, times({ended(0, 900), again}));
  EXPECT_EQ(alba(), 2 * (900 + 900)) << "more than one walltime: none is left for the offer";
  intend(2, 1, 300);
  submit(2, 1, "41");
  job::JobStart second = ended(1950, 2250);
  second.handover = 1;
  time_utc_ = "2026-03-01T12:45:00.000Z";
  accept(2, 1, times({second}));
  EXPECT_EQ(alba(), 2 * (900 + 900 + 50 + 300));
}

TEST_F(SpendingTest, KeepsTheOfferOfAnAllocationThatNoRoundTook) {
  intend(1, 1, 5000);
  submit(1, 1, "41");
  job::JobStart first = start_at(0);
  first.offered = kBegin + 100;
  accept(1, 1, times({first}));
  EXPECT_EQ(alba(), 2000) << "the walltime ends the offer";
  intend(2);
  submit(2, 1, "42");
  accept(2, 1, times({ended(0, 10)}));
  EXPECT_EQ(alba(), 2020);
  intend(3, 1, 300);
  submit(3, 1, "43");
  job::JobStart over = ended(0, 100);
  over.offered = kBegin + 60;
  accept(3, 1, times({over}));
  EXPECT_EQ(alba(), 2020 + 200) << "a job that has ended offers nothing";
}

TEST_F(SpendingTest, AJobOfAnEarlierReleaseCountsByItsTimes) {
  add(kAlba, 1, 1, SubmitIntended{.job_name = "j", .script_sha256 = "s"});
  submit(1, 1, "41");
  EXPECT_EQ(alba(), 0);
  accept(1, 1, times({ended(0, 100)}));
  EXPECT_EQ(alba(), 200);
}

TEST_F(SpendingTest, AUserGrantsOneSubmissionAfterAPauseByABudget) {
  const auto pause = [&](bool by_budget) {
    add(kAlba, 0, 0, FacilityPaused{.reason = "r", .by_budget = by_budget});
  };
  pause(true);
  EXPECT_TRUE(spending_.is_paused(kAlba));
  add(kAlba, 0, 0, FacilityResumed{});
  EXPECT_FALSE(spending_.is_paused(kAlba));
  EXPECT_FALSE(spending_.may_exceed(kAlba)) << "the budget itself ended the pause";
  pause(true);
  add(kAlba, 0, 0, FacilityResumed{.new_budget = true});
  EXPECT_TRUE(spending_.may_exceed(kAlba));
  EXPECT_FALSE(spending_.may_exceed(kBrno));
  intend(1, 1, 0, kBrno);
  EXPECT_TRUE(spending_.may_exceed(kAlba)) << "a submission of another facility";
  intend(1);
  EXPECT_FALSE(spending_.may_exceed(kAlba)) << "one submission";
  pause(true);
  pause(false);
  EXPECT_FALSE(spending_.is_paused(kAlba));
  add(kAlba, 0, 0, FacilityResumed{.new_budget = true});
  EXPECT_FALSE(spending_.may_exceed(kAlba)) << "it was another pause";
}

// Each facility asks whether none has paused yet, and then pauses.
TEST(RunHistoryRecordIf, NoEventComesBetweenTheQuestionAndTheRecord) {
  const test::TempDir folder;
  RunHistory history(folder / "journal.db");
  history.record({}, RunCreated{.run = RunName("0001"),
                                .project = "p",
                                .secret = std::string(32, '1'),
                                .tag = "12345678",
                                .config_sha256 = "c"});
  std::vector<FacilityName> names;
  for (char c = 'a'; c <= 'h'; ++c) names.emplace_back(std::string("site-") + c);
  std::atomic<int> recorded{0};
  const auto pause = [&](const FacilityName& name) {
    const auto none_has = [&](const Spending& spending) {
      return std::none_of(names.begin(), names.end(),
                          [&](const FacilityName& each) { return spending.is_paused(each); });
    };
    if (history.record_if({.facility = name}, FacilityPaused{.reason = "r", .by_budget = true},
                          none_has))
      ++recorded;
  };
  {
    std::vector<std::jthread> threads;
    for (const FacilityName& name : names) threads.emplace_back([&] { pause(name); });
  }
  EXPECT_EQ(recorded, 1);
  EXPECT_EQ(history.state().paused.size(), 1u);
}

// A reader of a large state delays the change that follows a record.
TEST(RunHistoryRecord, NoEventOfAnotherThreadIsForgotten) {
  constexpr size_t kThreads = 4, kEvents = 20;
  const test::TempDir folder;
  RunHistory history(folder / "journal.db");
  std::vector<FacilityName> members;
  for (int i = 0; i < 2000; ++i) members.emplace_back("site-" + std::to_string(i));
  history.record({.round = 1}, RoundPlanned{"", "p", members, false});
  std::jthread reader([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      EXPECT_EQ(history.state().rounds.size(), 1u);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  {
    std::vector<std::jthread> writers;
    for (size_t t = 0; t < kThreads; ++t)
      writers.emplace_back([&, t] {
        for (size_t i = 0; i < kEvents; ++i)
          history.record({.facility = members.at(t * kEvents + i)}, FacilityPaused{.reason = "r"});
      });
  }
  EXPECT_EQ(history.state().paused.size(), kThreads * kEvents);
}

}  // namespace
}  // namespace xffl::history
