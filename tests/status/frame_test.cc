// The frames of the live view, for states that a test writes down.
#include "xffl/status/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/text_width.h"

namespace xffl::status {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const FacilityName kAlba("alba"), kBrno("brno");
constexpr WindowSize kWide{50, 200};

class FrameTest : public testing::Test {
 protected:
  FrameTest() {
    status_.state = "running";
    status_.coordinator = "host:1";
    status_.rounds_planned = 3;
    status_.folder = dir_ / "runs/0001";
    status_.run_state.project = "test";
  }
  history::RoundState& round(int number = 1) { return status_.run_state.rounds[number]; }
  history::FacilityState& facility(const FacilityName& name) { return round().facilities[name]; }
  history::Attempt& attempt(const FacilityName& name) {
    history::Attempt& attempt = facility(name).attempts.emplace_back();
    attempt.number = static_cast<int>(facility(name).attempts.size());
    attempt.job_id = "42";
    return attempt;
  }
  FrameRow row() const {
    const Frame frame = make_frame(status_, now_);
    return frame.rows.empty() ? FrameRow{} : frame.rows[0];
  }
  std::string next() const { return make_frame(status_, now_).next; }

  test::TempDir dir_;
  RunStatus status_;
  const Clock::UtcTime now_ = *parse_utc("2026-03-02T14:03:10.000Z");
};

TEST_F(FrameTest, ARowHasTheProgressOfTheRunningAttempt) {
  attempt(kAlba);
  status_.live[kAlba] = {1, "running, time limit in 3 h", "2026-03-02T14:00:01.500Z",
                         history::TrainingProgress{1, 12, 40, 5.1234, 900}};
  const FrameRow shown = row();
  EXPECT_EQ(shown.name, "alba");
  EXPECT_EQ(shown.state, "running");
  EXPECT_EQ(shown.since, "14:00:01");
  EXPECT_EQ(shown.number, "1/1");
  EXPECT_EQ(shown.job, "42");
  EXPECT_EQ(shown.step, "12/40");
  EXPECT_EQ(shown.loss, "5.1234");
  EXPECT_EQ(shown.detail, "time limit in 3 h");
  EXPECT_FALSE(shown.urgent);
  attempt(kAlba);
  EXPECT_EQ(row().number, "1/2");
  EXPECT_EQ(row().step, "") << "of the attempt before";
}

TEST_F(FrameTest, TimesOfAnotherDayHaveADate) {
  attempt(kAlba);
  status_.live[kAlba] = {1, "pending (Priority)", "2026-02-28T23:59:59.000Z", {}};
  EXPECT_EQ(row().since, "02-28 23:59");
  EXPECT_EQ(row().detail, "(Priority)");
  status_.live[kAlba].since_utc = "yesterday";
  EXPECT_EQ(row().since, "");
  EXPECT_EQ(make_frame(status_, now_).updated, "2026-03-02 14:03:10 UTC");
}

TEST_F(FrameTest, AFacilityThatNeedsAUserIsUrgent) {
  attempt(kAlba);
  for (const char* activity : {"paused: authentication needed, pushing: denied",
                               "needs you: pushing, retrying: no space", "failed (exit 1)"}) {
    status_.live[kAlba] = {1, activity, "", {}};
    EXPECT_TRUE(row().urgent) << activity;
  }
  status_.live[kAlba] = {1, "not started", "", {}};
  EXPECT_EQ(row().state, "not started");
  EXPECT_FALSE(row().urgent);
  status_.run_state.paused[kAlba] = "maintenance";
  EXPECT_TRUE(row().urgent);
  EXPECT_THAT(row().detail, HasSubstr("PAUSED (maintenance)"));
}

TEST_F(FrameTest, NamesTheNextEvent) {
  EXPECT_EQ(next(), "next: round 1");
  attempt(kAlba);
  attempt(kBrno);
  EXPECT_EQ(next(), "next: update of alba, brno");
  facility(kAlba).accepted.emplace();
  facility(kBrno).missing = "late";
  EXPECT_EQ(next(), "next: the mean of round 1");
  round().model_sha256 = "m";
  EXPECT_EQ(next(), "next: publication of round 1");
  round().published = true;
  EXPECT_EQ(next(), "next: round 2");
  status_.run_state.stop_rule = history::StopRuleMet{"loss_below", "r"};
  EXPECT_EQ(next(), "next: the end of the run");
  status_.run_state.stop_rule.reset();
  status_.rounds_planned = 1;
  EXPECT_EQ(next(), "next: the end of the run");
  status_.state = "stopped";
  EXPECT_EQ(next(), "continue with: xffl run");
  status_.state = "cancelled";
  EXPECT_EQ(next(), "the run is cancelled");
}

TEST_F(FrameTest, LeavesOutEmptyColumns) {
  facility(kAlba);
  const auto lines = fit(make_frame(status_, now_), kWide, false);
  EXPECT_THAT(lines, ElementsAre("run 0001 of test: running, 0 of 3 rounds published, round 1: "
                                 "training",
                                 "facility  state        round", "alba      not started  1/0",
                                 "next: update of alba  updated 2026-03-02 14:03:10 UTC"));
}

TEST_F(FrameTest, HostileTextStaysInItsLine) {
  attempt(kAlba).job_id = "4\n\033[2J";
  facility(kAlba).missing = "gone\r\n\033]0;title\007 \u6771" + std::string(900, 'x');
  const std::string hostile = "why\r\n\033]0;title\007";
  status_.run_state.paused[kAlba] = hostile;
  status_.run_state.left[kAlba].reason = hostile;
  status_.credentials[kAlba] = {now_, hostile};
  for (const size_t columns : {1u, 2u, 20u, 79u, 200u, 400u})
    for (const std::string& line : fit(make_frame(status_, now_), {24, columns}, false)) {
      EXPECT_LT(display_width(line), std::max<size_t>(columns, 2)) << line;
      EXPECT_EQ(line.find_first_of("\033\r\n\007"), std::string::npos) << line;
    }
}

TEST_F(FrameTest, CountsTheRowsThatDoNotFit) {
  for (int i = 0; i < 20; ++i) attempt(FacilityName("site" + std::to_string(10 + i)));
  const Frame frame = make_frame(status_, now_);
  for (size_t rows = 1; rows < 40; ++rows) {
    const auto lines = fit(frame, {rows, 80}, true);
    EXPECT_LE(lines.size(), std::max<size_t>(rows, 2) - 1) << rows;
    EXPECT_THAT(lines.front(), HasSubstr("run 0001"));
    if (rows > 2) {
      EXPECT_THAT(lines.back(), HasSubstr("updated"));
    }
  }
  EXPECT_EQ(fit(frame, {24, 80}, false).size(), 23u);
  EXPECT_THAT(fit(frame, {23, 80}, false)[1], HasSubstr("site10")) << "the titles leave first";
  EXPECT_EQ(fit(frame, {22, 80}, false)[19], "... 2 more: xffl status");
  EXPECT_EQ(fit(frame, {4, 80}, false)[1], "... 20 more: xffl status");
}

TEST_F(FrameTest, IsTheSameUnlessTheRunChanges) {
  attempt(kAlba);
  const Frame frame = make_frame(status_, now_);
  EXPECT_TRUE(frame.shows_same_as(make_frame(status_, now_ + std::chrono::seconds(9))));
  facility(kAlba).missing = "late";
  EXPECT_FALSE(frame.shows_same_as(make_frame(status_, now_)));
}

TEST_F(FrameTest, NotesASilentCoordinator) {
  status_.last_sign = now_ - std::chrono::minutes(2);
  EXPECT_THAT(make_frame(status_, now_).notes, IsEmpty());
  const auto later = now_ + std::chrono::minutes(10);
  EXPECT_THAT(make_frame(status_, later).notes,
              ElementsAre(HasSubstr("since 2026-03-02T14:01:10.000Z")));
  EXPECT_FALSE(make_frame(status_, later).shows_same_as(make_frame(status_, now_)));
  EXPECT_TRUE(make_frame(status_, later)
                  .shows_same_as(make_frame(status_, later + std::chrono::minutes(3))));
}

TEST_F(FrameTest, NotesTheReasonOfAStopAndCertificates) {
  status_.state = "stopped";
  status_.run_state.stopped = {"2026-03-02T14:00:00.000Z", "failed", "brno\nis missing"};
  status_.credentials[kAlba] = {now_ + std::chrono::minutes(5), "renew-it"};
  EXPECT_THAT(make_frame(status_, now_).notes,
              ElementsAre("stopped at 2026-03-02T14:00:00.000Z (failed): brno\\x0Ais missing",
                          "alba: its certificate ends at 2026-03-02T14:08:10.000Z: renew it with: "
                          "renew-it"));
  status_.state = "running";
  EXPECT_THAT(make_frame(status_, now_).notes,
              ElementsAre(HasSubstr("alba: its certificate ends at")));
  status_.state = "completed";
  EXPECT_THAT(make_frame(status_, now_).notes, IsEmpty());
}

TEST_F(FrameTest, DrawsWithinOneSynchronizedUpdate) {
  EXPECT_EQ(draw_in_place({"a", "b"}), "\033[?2026h\033[Ha\033[K\r\nb\033[K\r\n\033[J\033[?2026l");
}

}  // namespace
}  // namespace xffl::status
