// Federations in this process whose files are invisible or unreadable for a while, at a facility or
// here, and cancellations of unreachable jobs. The trainings are those of xffl-fake-trainer.
#include <gmock/gmock.h>

#include <thread>

#include "e2e/in_process.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/run_folder.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class MissingEvidence : public InProcessFederation {
 protected:
  MissingEvidence() {
    project_.set_rounds(1);
    project_.set_hold();
    project_.write_config();
    clock_.longest_sleep = milliseconds(50);
  }
  /// Runs the coordinator until the journal has `count` events of `kind`.
  void run_until(const std::string& kind, int count) {
    std::jthread operator_thread([&] {
      project_.await_events(kind, count);
      stop_.request_stop();
    });
    EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kCancelled);
    operator_thread.join();
    stop_ = std::stop_source();
  }
  void expect_trained_once() {
    EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1", "brno 1 1"}));
    EXPECT_EQ(project_.count_events("attempt_failed"), 0);
    EXPECT_EQ(project_.count_events("facility_missing"), 0);
    EXPECT_EQ(project_.count_events("update_lost"), 0);
  }
};

// brno's job has ended; the login node is reachable before the file system is mounted.
TEST_F(MissingEvidence, AnInvisibleFinishedTrainingIsKept) {
  project_.release("alba");
  brno_settles_ = milliseconds(50);
  fs::path round, hidden;
  const auto report = [&] { return round / "a1/out/report.json"; };
  brno_waits_ = [&] {  // called by brno's thread
    if (!hidden.empty()) return false;
    round = facility_folder("brno") / names_in(facility_folder("brno"), "r0001").at(0);
    project_.release("brno");
    EXPECT_TRUE(await([&] { return fs::exists(report()); }));
    EXPECT_TRUE(job_ends(project_.jobs("brno").at(0)));
    hidden = round.string() + ".hidden";
    fs::rename(round, hidden);
    return true;
  };
  int fences = 0;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation != "make_dirs" || !path.str().ends_with("claim/fenced")) return;
    if (++fences < 3) throw Error(ErrorKind::kIo, "read-only file system");
    if (fences == 3) fs::rename(hidden, round);
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(fences, 3);
  expect_trained_once();
}

TEST_F(MissingEvidence, AReportIsReadWhenItIsVisibleAgain) {
  project_.release();
  int stats = 0;
  watch("brno", [&](const std::string& operation, const RemotePath& path) {
    if (operation != "stat" || !path.str().ends_with("out/report.json")) return;
    const bool there = fs::exists(path.str());
    stats += there ? 1 : 0;
    if (there && stats > 1 && stats < 7) throw Error(ErrorKind::kNotFound, "no such file");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(stats, 7);
  expect_trained_once();
}

TEST_F(MissingEvidence, AnAcceptedUpdateSurvivesAnUnreachableFacility) {
  project_.release("alba");
  run_until("update_accepted", 1);
  const auto update = project_.run_folder() / "r0001/alba/update";
  fs::resize_file(update / "model.safetensors", fs::file_size(update / "model.safetensors") - 1);
  int stats = 0;
  watch("alba", [&](const std::string& operation, const RemotePath&) {
    if (operation != "stat" || ++stats >= 20) return;
    if (stats < 10) throw Error(ErrorKind::kRemote, "the link is down");
    throw Error(ErrorKind::kNotFound, "no such file");
  });
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(stats, 20);
  expect_trained_once();
  EXPECT_TRUE(names_in(update.parent_path(), "update.damaged").empty());
}

// The other facilities go on until the user has renewed the credential.
TEST_F(MissingEvidence, AnAcceptedUpdateSurvivesAnExpiredCredential) {
  project_.release("alba");
  run_until("update_accepted", 1);
  write_file_atomic(project_.run_folder() / "r0001/alba/update/model.safetensors", "damaged");
  int looks = 0;
  watch("alba", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "stat" && path.filename() == "report.json" && ++looks < 4)
      throw Error(ErrorKind::kAuth, "the certificate has expired");
  });
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(looks, 4);
  expect_trained_once();
}

// The deadline has passed while no coordinator ran: the training, which was in time, still counts.
TEST_F(MissingEvidence, AnAcceptedUpdateIsFetchedAgainAfterTheDeadline) {
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 0s, deadline: 1h, poll_interval: 20ms}");
  project_.write_config();
  project_.release("alba");
  run_until("update_accepted", 1);
  write_file_atomic(project_.run_folder() / "r0001/alba/update/model.safetensors", "damaged");
  clock_.ahead_hours = 2;
  int looks = 0;
  watch("alba", [&](const std::string& operation, const RemotePath& path) {
    if (operation == "stat" && path.filename() == "report.json" && ++looks < 40)
      throw Error(ErrorKind::kRemote, "the link is down");
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_GE(looks, 40);
  EXPECT_EQ(project_.count_events("update_lost"), 0);
  EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1"}));
  project_.release();
}

// The facility answers, has the run's folder and no report: waiting cannot bring the update back.
TEST_F(MissingEvidence, AnAcceptedUpdateThatIsGoneOnBothSidesIsTrainedAgain) {
  project_.release("alba");
  run_until("update_accepted", 1);
  write_file_atomic(project_.run_folder() / "r0001/alba/update/model.safetensors", "damaged");
  const fs::path rounds = facility_folder("alba");
  for (const std::string& round : names_in(rounds, "r0001")) fs::remove_all(rounds / round);
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(project_.count_events("update_lost"), 1);
  EXPECT_EQ(project_.trainings(), (std::vector<std::string>{"alba 1 1", "alba 1 2", "brno 1 1"}));
}

// An error of an open() is no proof of damage; a bad sector is (damage_test.cc).
TEST_F(MissingEvidence, AStoredUpdateThatCannotBeOpenedIsNotDamaged) {
  project_.release("alba");
  run_until("update_accepted", 1);
  const auto update = project_.run_folder() / "r0001/alba/update";
  const fs::path real = update.string() + ".real";
  fs::rename(update, real);
  fs::create_symlink("update", update);  // every access fails with ELOOP
  int fetches = 0;
  watch("alba", [&](const std::string&, const RemotePath& path) {
    if (path.str().find("out/update") != std::string::npos) ++fetches;
  });
  project_.release();
  std::jthread operator_thread([&] {
    std::this_thread::sleep_for(seconds(1));
    if (!fs::is_symlink(update)) return;
    fs::remove(update);
    fs::rename(real, update);
  });
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(fetches, 0);
  expect_trained_once();
}

// The coordinator makes the file again; no update is rejected.
TEST_F(MissingEvidence, DamageOnThisMachineIsNotTheFacilitys) {
  run_until("submitted", 2);
  const auto config = project_.run_folder() / "r0000/global/config.json";
  const std::string text = read_file(config, 1 << 20);
  write_file_atomic(config, "{");
  project_.release();
  EXPECT_EQ(run().rounds_published, 1);
  EXPECT_EQ(read_file(config, 1 << 20), text);
  expect_trained_once();
}

// --- Cancellations ---

void cannot_be_fenced(const std::string& operation, const RemotePath& path) {
  if (operation == "make_dirs" && path.str().ends_with("claim/fenced"))
    throw Error(ErrorKind::kRemote, "the link is down");
}

TEST_F(MissingEvidence, AFailedRoundReportsItsReasonWhileAFacilityIsDown) {
  project_.set_policy("{on_missing: fail, poll_interval: 20ms}");
  project_.set_fault("alba", "nan!");
  project_.write_config();
  watch("brno", cannot_be_fenced);
  std::jthread operator_thread([&] {
    project_.await_events("submitted", 2);
    project_.release("alba");
  });
  const Error error = error_of([&] { run(); });
  EXPECT_EQ(error.kind(), ErrorKind::kFailed) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("alba: "));
  EXPECT_EQ(project_.count_events("cancel_intended"), 1);
  project_.release();
}

TEST_F(MissingEvidence, TheNextRunRepeatsALostCancellation) {
  run_until("submitted", 2);
  watch("brno", cannot_be_fenced);
  const config::Experiment experiment = config::load_experiment(project_.path());
  const history::RunFolder folder{project_.path() / "runs", RunName("0001")};
  facility::Services made = services();
  const history::Request cancel{history::Request::Kind::kCancel, {}, "enough"};
  const Error error =
      error_of([&] { run::operate(experiment, folder, made, cancel, seconds(10)); });
  EXPECT_EQ(error.kind(), ErrorKind::kRemote);
  EXPECT_THAT(error.what(), HasSubstr("stays on record"));
  EXPECT_EQ(project_.count_events("run_cancelled"), 0);
  EXPECT_EQ(history::pending_requests(folder).size(), 1u);
  before_.clear();
  EXPECT_EQ(error_of([&] { run(); }).kind(), ErrorKind::kFailed);
  EXPECT_EQ(project_.count_events("run_cancelled"), 1);
  EXPECT_EQ(project_.count_events("attempt_opened"), 2);
  EXPECT_TRUE(history::pending_requests(folder).empty());
  project_.release();
  EXPECT_TRUE(project_.trainings().empty());
}

// The job of a facility that could not be fenced at its round's end.
TEST_F(MissingEvidence, ACancellationAlsoEndsTheJobsOfEarlierRounds) {
  project_.set_rounds(2);
  project_.set_policy(
      "{on_missing: skip, quorum: 1, quorum_grace: 1s, deadline: 1h, poll_interval: 20ms}");
  project_.write_config();
  project_.hold("alba", 2);
  project_.release("alba");
  watch("brno", cannot_be_fenced);
  run_until("published", 1);
  before_.clear();
  facility::Services made = services();
  run::operate(config::load_experiment(project_.path()),
               {project_.path() / "runs", RunName("0001")}, made,
               {history::Request::Kind::kCancel, {}, "enough"}, seconds(10));
  const auto events = project_.events();
  EXPECT_TRUE(std::ranges::any_of(events, [](const history::StoredEvent& event) {
    return event.kind == "cancel_confirmed" && event.round == 1 && event.facility == "brno";
  }));
  EXPECT_TRUE(job_ends(project_.jobs("brno").at(0)));
  project_.release();
}

}  // namespace
}  // namespace xffl::test
