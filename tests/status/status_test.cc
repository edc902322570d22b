// The output of `xffl status` for states that a test writes down.
#include "xffl/status/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "support/peak_memory.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"

namespace xffl::status {
namespace {

using std::chrono::minutes;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const FacilityName kAlba("alba"), kBrno("brno");

class Status : public testing::Test {
 protected:
  Status() {
    status_.state = "running";
    status_.coordinator = "host:1";
    status_.rounds_planned = 3;
    status_.folder = dir_ / "runs/0001";
    status_.run_state.project = "test";
    for (const FacilityName& name : {kAlba, kBrno}) facility(1, name);
  }

  history::FacilityState& facility(int round, const FacilityName& name) {
    return status_.run_state.rounds[round].facilities[name];
  }
  history::Attempt& attempt(const FacilityName& name) {
    return facility(1, name).attempts.emplace_back();
  }
  /// An accepted update of `round`, with the losses of the job's input model and of its own model.
  void accept(int round, const FacilityName& name, double before, double after) {
    history::Accepted accepted;
    accepted.facility = name;
    accepted.attempt = 1;
    accepted.report = report(round, name, before, after);
    accepted.update_sha256 = accepted.report.update_sha256;
    facility(round, name).attempts.emplace_back().number = 1;
    facility(round, name).accepted = accepted;
  }
  static job::JobReport report(int round, const FacilityName& name, double before, double after) {
    job::JobReport report;
    report.key = {"test", "0001", round, name.str(), 1, std::string(32, 'a')};
    report.base_model_sha256 = report.update_sha256 = std::string(64, 'a');
    report.trainer = "test";
    report.steps = 4;
    report.validation = {{"it", 100, before, after}};
    return report;
  }
  std::string text() const { return format_status(status_); }
  /// The line that begins with `begin`.
  std::string line(const std::string& begin) const {
    const std::string all = "\n" + text();
    const size_t at = all.find("\n" + begin);
    if (at == std::string::npos) return "";
    return all.substr(at + 1, all.find('\n', at + 1) - at - 1);
  }

  test::TempDir dir_;
  RunStatus status_;
};

TEST_F(Status, ShowsTheShareOfAFacilityInTheMean) {
  history::RoundState& round = status_.run_state.rounds[1];
  round.participants = {{kAlba, "", 30.0}, {kBrno, "", 10.0}};
  accept(1, kAlba, 5, 4);
  accept(1, kBrno, 5, 4);
  EXPECT_THAT(line("  alba"), HasSubstr(", 75.0 % of the mean"));
  EXPECT_THAT(line("  brno"), HasSubstr(", 25.0 % of the mean"));
  const Json json = parse_json(format_status_json(status_), "status");
  EXPECT_EQ(json["rounds_detail"][0]["facilities"]["brno"]["share"], 0.25);
}

TEST_F(Status, ShowsTheSilenceOfACoordinator) {
  const Clock::UtcTime now = *parse_utc("2026-03-01T12:30:00.000Z");
  status_.coordinator = "pid 7 on login1";
  status_.last_sign = now - std::chrono::minutes(4);
  EXPECT_THAT(format_status(status_, now), Not(HasSubstr("no sign of life")));
  status_.last_sign = now - std::chrono::minutes(12);
  EXPECT_THAT(format_status(status_, now),
              HasSubstr("the coordinator (pid 7 on login1) has given no sign of life for 12 min"));
  EXPECT_EQ(parse_json(format_status_json(status_), "status").at("last_sign_of_life"),
            "2026-03-01T12:18:00.000Z");
  status_.coordinator = "";
  EXPECT_THAT(format_status(status_, now), Not(HasSubstr("no sign of life")));
}

// The job of round k + 1 evaluates the model of round k before it trains.
TEST_F(Status, ALossBelongsToTheJobsInputModel) {
  accept(1, kAlba, 5.5, 4.5);
  accept(2, kAlba, 4.75, 4.0);
  const std::vector<GlobalLoss> losses = global_losses(status_.run_state);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].round, 0);
  EXPECT_EQ(losses[0].nll, 5.5);
  EXPECT_EQ(losses[1].round, 1);
  EXPECT_EQ(losses[1].nll, 4.75);
}

TEST_F(Status, AJobThatStoppedEarlyHasTheLossOfItsInputModelOnly) {
  accept(1, kAlba, 5.5, 0);
  facility(1, kAlba).accepted->report.stopped_early = true;
  EXPECT_THAT(line("  alba"), testing::EndsWith(", it 5.5000"));
  EXPECT_EQ(global_losses(status_.run_state).at(0).nll, 5.5);
}

// A run's journal, with the events that the table of losses needs.
class LossesOfAJournal : public Status {
 protected:
  LossesOfAJournal() : history_(std::in_place, path()) {
    record({}, history::RunCreated{RunName("0001"), "test", "s", "", "c"});
    record({}, history::ModelImported{"m0", "", ""});
  }
  std::filesystem::path path() const { return dir_ / "journal.db"; }
  void record(const history::EventScope& scope, const history::Event& event) {
    history_->record(scope, event);
  }
  void plan(int round, const std::vector<FacilityName>& members, bool evaluates = false) {
    record({round},
           history::RoundPlanned{"m" + std::to_string(round - 1), "p", members, evaluates});
  }
  void train(int round, const FacilityName& name, const job::JobReport& report, int attempt = 1) {
    record({round, name, attempt}, history::AttemptOpened{report.key.nonce});
    record({round, name, attempt},
           history::UpdateAccepted{report.update_sha256, report, 0, std::nullopt});
  }
  void publish(int round) {
    const std::string model = "m" + std::to_string(round);
    record({round}, history::Aggregated{model, ""});
    record({round}, history::Published{model});
  }
  // The whole run in memory.
  std::string replayed() const {
    return format_global_losses(history::replay(history::read_events(path())));
  }

  std::optional<history::RunHistory> history_;
};

// `xffl status` shows the newest 20 rounds only.
TEST_F(LossesOfAJournal, AreThoseOfTheWholeRun) {
  EXPECT_EQ(format_global_losses(path()), "");
  const FacilityName cluj("cluj");
  constexpr int kRounds = 22;
  for (int round = 1; round <= kRounds; ++round) {
    const bool loses_an_update = round == 2, has_cluj = round == 3;
    plan(round, {kAlba, kBrno, cluj});
    if (round != 5) train(round, kAlba, report(round, kAlba, 30.0 - round, 1));
    if (loses_an_update) {
      job::JobReport lost = report(round, kBrno, 77, 1);
      lost.validation.push_back({"lost", 100, 78, 1});
      train(round, kBrno, lost);
      record({round, kBrno, 1}, history::UpdateLost{"damaged"});
      train(round, kBrno, report(round, kBrno, 7.5, 1), 2);
    }
    if (has_cluj) {  // its only losses, of an update that is lost
      train(round, cluj, report(round, cluj, 88, 1));
      record({round, cluj, 1}, history::UpdateLost{"damaged"});
    }
    publish(round);
  }
  plan(kRounds + 1, {kAlba}, true);
  job::JobReport evaluation = report(kRounds + 1, kAlba, 6.25, 0);
  evaluation.update_sha256.clear();
  train(kRounds + 1, kAlba, evaluation);
  const std::string text = format_global_losses(path());
  EXPECT_EQ(text, replayed());
  EXPECT_THAT(text, AllOf(HasSubstr("\n      0 "), HasSubstr("\n     22 "), HasSubstr("6.2500"),
                          HasSubstr("7.5000"), HasSubstr("brno it")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("lost")), Not(HasSubstr("cluj")),
                          Not(HasSubstr("\n     23 ")), Not(HasSubstr("from round"))));
}

// The reports of a long run do not fit into the coordinator's memory.
TEST_F(LossesOfAJournal, NeedTheMemoryOfTheTableOnly) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  constexpr int kRounds = 4, kFacilities = 10;  // 40 reports of 280 kB
  std::vector<FacilityName> members;
  for (int i = 0; i < kFacilities; ++i) members.emplace_back("f" + std::to_string(i));
  for (int round = 1; round <= kRounds; ++round) {
    plan(round, members);
    for (const FacilityName& name : members) {
      job::JobReport large = report(round, name, 5, 4);
      large.environment.interfaces.assign(1400, std::string(196, 'e'));
      train(round, name, large);
    }
    publish(round);
  }
  history_.reset();
  ::malloc_trim(0);  // the memory of the writer does not hide that of the reader
  constexpr long kAllowedKiB = 8 << 10;
  EXPECT_LT(test::lowest_growth_in_child(kAllowedKiB,
                                         [&] {
                                           if (format_global_losses(path()).empty())
                                             throw Error(ErrorKind::kInternal, "no table");
                                         }),
            kAllowedKiB);
}

TEST_F(Status, OfARunWithoutACoordinatorIsStopped) {
  const auto path = dir_ / "journal.db";
  write_file_atomic(dir_ / "live.json",
                    R"({"alba": {"round": 1, "doing": "running", "since": "12:00"}})");
  {
    const history::RunHistory open(path);
    EXPECT_EQ(read_status(dir_.path(), 3).state, "running");
    EXPECT_EQ(read_status(dir_.path(), 3).live.size(), 1u);
  }
  const RunStatus stopped = read_status(dir_.path(), 3);
  EXPECT_EQ(stopped.state, "stopped");
  EXPECT_TRUE(stopped.live.empty()) << "a killed coordinator leaves the file";
}

TEST_F(Status, DistinguishesASubmissionWithoutAnAnswer) {
  attempt(kAlba).submit_intended = true;
  attempt(kBrno).pushed = true;
  EXPECT_EQ(line("  alba"), "  alba: submission unknown");
  EXPECT_EQ(line("  brno"), "  brno: pushed");
}

TEST_F(Status, ShowsTheActivityInItsRoundOnly) {
  facility(2, kAlba);
  status_.live[kAlba] = {2, "job 7 is running", "12:00"};
  EXPECT_EQ(line("  alba"), "  alba: not started") << "of round 1";
  EXPECT_THAT(text(), HasSubstr("round 2: training\n  alba: job 7 is running (since 12:00)\n"));
}

// The coordinator's status file keeps the last activity.
TEST_F(Status, ShowsNoActivityOfAFacilityWhosePartOfTheRoundHasEnded) {
  for (const FacilityName& name : {kAlba, kBrno}) status_.live[name] = {1, "running", "12:00"};
  accept(1, kAlba, 5, 4);
  facility(1, kBrno).missing = "its job failed";
  EXPECT_THAT(line("  alba"), HasSubstr("alba: accepted  0 tokens"));
  EXPECT_EQ(line("  brno"), "  brno: missing  (its job failed)");
}

TEST_F(Status, AnExpiredCertificateHasNoTimeLeft) {
  const Clock::UtcTime now = *parse_utc("2026-03-01T12:00:00.000Z");
  status_.credentials[kAlba] = {now - minutes(5), "renew-it"};
  status_.credentials[kBrno] = {now + minutes(5), ""};
  const std::string shown = format_status(status_, now);
  EXPECT_THAT(shown, HasSubstr("alba: its certificate expired at 2026-03-01T11:55:00.000Z"));
  EXPECT_THAT(shown, HasSubstr("brno: its certificate ends in 5 min, at 2026-03-01T12:05"));
}

TEST_F(Status, NamesPausedFacilitiesOfAnUnfinishedRun) {
  status_.run_state.paused[kBrno] = "maintenance";
  EXPECT_EQ(line("brno is"), "brno is PAUSED (maintenance): continue with `xffl resume brno`");
  status_.run_state.completed = true;
  EXPECT_EQ(line("brno is"), "");
}

TEST_F(Status, AFacilityLeavesAfterItsRoundOrAtOnce) {
  status_.run_state.rounds[1].members = {kAlba, kBrno};
  status_.run_state.left[kBrno].reason = "spent";
  EXPECT_THAT(line("brno "), HasSubstr("brno LEAVES after this round (spent)"));
  status_.run_state.left[kBrno].now = true;
  EXPECT_THAT(line("brno "), HasSubstr("brno has LEFT (spent)"));
}

TEST_F(Status, NamesTheRuleThatEndedTheTraining) {
  EXPECT_THAT(text(), Not(HasSubstr("no round follows")));
  EXPECT_TRUE(parse_json(format_status_json(status_), "status")["stop_rule"].is_null());
  status_.run_state.stop_rule = history::StopRuleMet{"loss_below", "the loss is 1.5, below 2"};
  EXPECT_THAT(text(), HasSubstr("no round follows: policy.stop_when.loss_below: the loss is 1.5, "
                                "below 2\n"));
  EXPECT_EQ(parse_json(format_status_json(status_), "status")["stop_rule"]["rule"], "loss_below");
}

TEST_F(Status, AJobsOutputCannotControlTheTerminal) {
  attempt(kBrno).failure = "exit code 1: \033]0;title\007\r\n\033[2J";
  EXPECT_THAT(line("  brno"), HasSubstr("exit code 1"));
  EXPECT_EQ(text().find_first_of("\033\r\007"), std::string::npos) << text();
}

TEST_F(Status, NoTextControlsTheTerminalOrTellsASecret) {
  const Clock::UtcTime now = *parse_utc("2026-03-01T12:00:00.000Z");
  const std::string hostile = "\033]0;title\007\r password=hunter2hunter2";
  facility(1, kBrno).missing = hostile;
  status_.live[kAlba] = {1, hostile, "12:00"};
  status_.credentials[kAlba] = {now + minutes(5), hostile};
  status_.run_state.paused[kAlba] = hostile;
  status_.run_state.left[kBrno].reason = hostile;
  status_.run_state.stop_rule = history::StopRuleMet{"loss_below", hostile};
  status_.state = "stopped";
  status_.run_state.stopped = {"2026-03-01T12:00:00.000Z", "failed", hostile + "\n" + hostile};
  const std::string shown = format_status(status_, now), removed = "password=[removed]";
  EXPECT_EQ(shown.find_first_of("\033\r\007"), std::string::npos) << shown;
  EXPECT_THAT(shown, Not(HasSubstr("hunter2")));
  int count = 0;
  for (size_t at = 0; (at = shown.find(removed, at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 8) << "each of the texts is shown: " << shown;
  EXPECT_THAT(format_status_json(status_), AllOf(Not(HasSubstr("hunter2")), HasSubstr(removed)));
}

TEST_F(Status, GivesTheReasonOfAStopAndOfAMissingFacility) {
  facility(1, kBrno).missing = "its job failed";
  EXPECT_EQ(line("  brno"), "  brno: missing  (its job failed)");
  status_.coordinator = "";
  status_.state = "stopped";
  EXPECT_THAT(text(), HasSubstr("the coordinator ended without a reason"));
  status_.run_state.stopped = {"2026-03-01T12:00:00.000Z", "failed", "no quorum"};
  EXPECT_THAT(text(), AllOf(HasSubstr("stopped at 2026-03-01T12:00:00.000Z (failed): no quorum\n"),
                            Not(HasSubstr("without a reason"))));
}

}  // namespace
}  // namespace xffl::status
