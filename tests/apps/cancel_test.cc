// `xffl cancel` asks on a terminal, and nowhere else.
#include <gmock/gmock.h>

#include "apps/sample_run.h"
#include "support/await.h"
#include "support/on_terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

using testing::HasSubstr;
using testing::Not;

class Cancel : public test::SampleRun {
 protected:
  test::OnTerminal on_terminal(const std::vector<std::string>& words) const {
    return {command(words), 24, 100, {}};
  }
  // Waits for the request to cancel, and acts on it as a coordinator.
  bool coordinate() {
    if (!test::await([&] { return !history::pending_requests(folder_).empty(); },
                     std::chrono::seconds(30)))
      return false;
    const auto requests = history::pending_requests(folder_);
    history_->record({}, history::RunCancelled{});
    history::remove_request(folder_, requests.front().first);
    return requests.front().second.kind == history::Request::Kind::kCancel;
  }
};

constexpr const char* kQuestion = "Cancel the run? (type yes to cancel)";

TEST_F(Cancel, ShowsTheJobsAndWaitsForYes) {
  SystemClock clock;
  history::StatusFile live(folder_.live(), clock);
  live.show(1, FacilityName("brno"), "pending (Priority)\033]0;x\a");
  ASSERT_TRUE(test::await([&] { return history::read_activities(folder_.live()).size() == 1; }));
  history_->record({1, FacilityName("alba"), 1}, history::AttemptFailed{"the node failed", true});
  submit(1, "alba", 2, "4103");
  test::OnTerminal terminal = on_terminal({"cancel"});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("run 0001 of test: running, 0 of 3 rounds published"))
      << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  alba: job 4103 of round 1")) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  brno: job 4102 of round 1 (pending (Priority)"))
      << terminal.bytes;
  EXPECT_THAT(terminal.bytes, Not(HasSubstr("4101"))) << "the attempt has failed";
  EXPECT_THAT(terminal.bytes, Not(HasSubstr("\033]")));
  EXPECT_TRUE(history::pending_requests(folder_).empty()) << "before the answer";
  terminal.type("yes\n");
  EXPECT_TRUE(coordinate());
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, HasSubstr("run 0001 is cancelled"));
}

// The job may exist: the answer to its submission is lost.
TEST_F(Cancel, ShowsAJobWhoseSubmissionIsUnconfirmed) {
  const FacilityName brno("brno");
  history_->record({1, brno, 1}, history::AttemptFailed{"the node failed", true});
  history_->record({1, brno, 2}, history::AttemptOpened{std::string(32, '2')});
  history_->record({1, brno, 2}, history::SubmitIntended{"job", "s"});
  test::OnTerminal terminal = on_terminal({"cancel"});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  brno: a job of round 1 whose submission is unconfirmed"))
      << terminal.bytes;
}

// The facility has not confirmed an earlier cancellation: the job may still run.
TEST_F(Cancel, ShowsAJobWhoseCancellationIsUnconfirmed) {
  const FacilityName brno("brno");
  history_->record({1, brno, 1}, history::CancelIntended{});
  history_->record({1, brno}, history::FacilityMissing{"the deadline of the round"});
  test::OnTerminal terminal = on_terminal({"cancel"});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  brno: job 4102 of round 1")) << terminal.bytes;
}

TEST_F(Cancel, ShowsNoJobWhoseUpdateIsHere) {
  job::JobReport report;
  report.key = {"test", "0001", 1, "alba", 1, std::string(32, '1')};
  report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
  report.trainer = "test";
  report.steps = 4;
  history_->record({1, FacilityName("alba"), 1},
                   history::UpdateAccepted{report.update_sha256, report, 0, std::nullopt});
  test::OnTerminal terminal = on_terminal({"cancel"});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  alba: no job")) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  brno: job 4102 of round 1")) << terminal.bytes;

  // The nodes that wait for the next round cost node-hours.
  std::string yaml = read_file(folder_.config(), 10'000);
  const std::string alba = "  alba: {";
  yaml.insert(yaml.find(alba) + alba.size(),
              "scheduler: slurm, slurm: {nodes: 1, time: 1h, keep_allocation: 30m}, ");
  write_file_atomic(folder_.config(), yaml);
  test::OnTerminal kept = on_terminal({"cancel"});
  ASSERT_TRUE(kept.await_text(kQuestion)) << kept.bytes;
  EXPECT_TRUE(kept.screen.shows("  alba: the kept allocation of round 1")) << kept.bytes;
}

TEST_F(Cancel, AnotherAnswerChangesNothing) {
  for (const char* answer : {"n\n", "\n", "y\n", "YES\n", "\4"}) {  // \4: end of the input
    test::OnTerminal terminal = on_terminal({"cancel"});
    ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
    terminal.type(answer);
    const bool is_end = *answer == '\4';
    EXPECT_EQ(terminal.finish(), exit_code(is_end ? ErrorKind::kUsage : ErrorKind::kCancelled))
        << answer << terminal.bytes;
    EXPECT_THAT(terminal.bytes, HasSubstr(is_end ? "`xffl cancel --yes` asks no question"
                                                 : "run 0001 was not cancelled"));
    EXPECT_TRUE(history::pending_requests(folder_).empty()) << answer;
    EXPECT_FALSE(history_->state().cancelled);
  }
}

TEST_F(Cancel, YesSkipsTheQuestion) {
  test::OnTerminal terminal = on_terminal({"cancel", "--yes"});
  EXPECT_TRUE(coordinate());
  EXPECT_EQ(terminal.finish(), 0) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, Not(HasSubstr(kQuestion)));
}

TEST_F(Cancel, AsksNothingInAPipe) {
  std::jthread coordinator([&] { EXPECT_TRUE(coordinate()); });
  const ProcessResult result = xffl({"cancel"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("run 0001 is cancelled"));
}

TEST_F(Cancel, ActsAtTheFacilitiesOfTheRunAfterAnEditOfTheProject) {
  write_file_atomic(project() / "xffl.yaml",
                    "project: test\nmodel: model\ntraining: {steps_per_round: 4}\nfacilities:\n"
                    "  carla: {workdir: other, data: {train: [x.tokens]}}\n");
  test::OnTerminal terminal = on_terminal({"cancel"});
  ASSERT_TRUE(terminal.await_text(kQuestion)) << terminal.bytes;
  EXPECT_TRUE(terminal.screen.shows("  alba: job 4101 of round 1")) << terminal.bytes;
  EXPECT_THAT(terminal.bytes, Not(HasSubstr("carla")));
}

// An ended run is reported as without a terminal: the question would be pointless.
TEST_F(Cancel, AsksNothingAboutAnEndedRun) {
  history_->record({}, history::RunCancelled{});
  history_.reset();
  test::OnTerminal terminal = on_terminal({"cancel"});
  EXPECT_EQ(terminal.finish(), exit_code(ErrorKind::kNotFound));
  EXPECT_THAT(terminal.bytes, HasSubstr("run 0001 has ended"));
  EXPECT_THAT(terminal.bytes, Not(HasSubstr(kQuestion)));
}

}  // namespace
}  // namespace xffl
