// Coordinators are killed, started twice and cancelled: the run loses nothing and trains nothing
// twice.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <thread>

#include "e2e/project.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using test::expect_undisturbed_result;
using test::kOnceEach;
using test::Project;
using test::undisturbed_sha256;

// SIGKILL on both sides of every journal record in turn; the same command continues each time.
TEST(Kill, AtEveryJournalRecordChangesNothing) {
  Project project;
  const std::string expected = undisturbed_sha256(project);
  for (const char* side : {"before", "after"}) {
    int kills = 0;
    for (int record = 1;; ++record) {
      const std::string failpoint = std::string("journal:") + side + ":" + std::to_string(record);
      const ProcessResult killed = project.run({{"XFFL_FAILPOINT", failpoint}});
      if (killed.exit_code == 0) {
        expect_undisturbed_result(project, expected, failpoint);
        project.forget_runs();
        break;  // the run has fewer records
      }
      ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
      ++kills;
      const ProcessResult resumed = project.run();
      ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
      expect_undisturbed_result(project, expected, failpoint);
      project.forget_runs();
    }
    EXPECT_GE(kills, 40) << "three rounds of two facilities have more records than that";
  }
}

// Only the clean-up after the last round is left.
TEST(Kill, AfterTheLastRoundRemovesOldRounds) {
  Project project;
  project.set_policy("{on_missing: wait, keep_rounds: 1, poll_interval: 20ms}");
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  int64_t last = 0;
  for (const history::StoredEvent& event : project.events())
    if (event.kind == "published") last = event.seq;
  project.forget_runs();
  const std::string failpoint = "journal:after:" + std::to_string(last);
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", failpoint}}).exit_code, 128 + SIGKILL);
  ASSERT_EQ(project.count_events("published"), 3);
  ASSERT_EQ(project.run().exit_code, 0);
  int seen = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(project.path() / "work" / "test")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("r0")) {
      EXPECT_EQ(name, "r0003") << entry.path();
      ++seen;
    }
  }
  EXPECT_EQ(seen, 2) << "of two facilities";
}

// The copy and the original would share jobs and folders at the facilities.
TEST(Copy, IsRejectedUntilAdopted) {
  namespace fs = std::filesystem;
  Project project;
  project.set_rounds(1);
  auto run = project.start_held_run();
  run.kill();
  fs::remove(project.run_folder() / "login.sock");
  const fs::path copy = project.path().parent_path() / "copy";
  fs::create_directory(copy);
  for (const char* part : {"runs", "model", "xffl.yaml"})
    fs::copy(project.path() / part, copy / part,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const auto in_copy = [&](std::vector<std::string> argv) {
    argv.insert(argv.end(), {"-p", copy.string()});
    return project.xffl(argv);
  };
  for (const char* command : {"run", "cancel", "pause", "resume"}) {
    const ProcessResult refused = in_copy({command});
    EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kUsage)) << command << refused.err;
    EXPECT_NE(refused.err.find("is a copy of"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("xffl journal adopt"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(in_copy({"status"}).exit_code, 0);
  project.release();
  EXPECT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.trainings(), (std::vector<std::string>{"alba 1 1", "brno 1 1"}))
      << "the copy has touched its jobs";

  const ProcessResult adopted = in_copy({"journal", "adopt"});
  EXPECT_EQ(adopted.exit_code, 0) << adopted.err;
  EXPECT_NE(adopted.out.find("is now coordinated"), std::string::npos) << adopted.out;
  const ProcessResult cancelled = in_copy({"cancel"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
}

TEST(Copy, AMovedRunContinues) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:20"}}).exit_code, 128 + SIGKILL);
  const std::filesystem::path away = project.path().parent_path() / "away";
  std::filesystem::create_directory(away);
  std::filesystem::rename(project.path() / "runs", away / "runs");
  const ProcessResult moved =
      project.xffl({"run", "-p", project.path().string(), "-w", away.string()});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_EQ(project.trainings(), kOnceEach);
}

// As below a home folder that is a link.
TEST(Copy, AProjectWithAnotherPathContinues) {
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:20"}}).exit_code, 128 + SIGKILL);
  const std::filesystem::path link = project.path() / "link";
  std::filesystem::create_directory_symlink(project.path(), link);
  const ProcessResult continued = project.xffl({"run", "-p", link.string()});
  EXPECT_EQ(continued.exit_code, 0) << continued.err;
  EXPECT_EQ(project.trainings(), kOnceEach);
}

// `scp -r` follows links.
TEST(Copy, WithAFolderInThePlaceOfCurrentHasTheLinkAgain) {
  namespace fs = std::filesystem;
  Project project;
  ASSERT_EQ(project.run().exit_code, 0);
  fs::remove(project.run_folder() / "login.sock");
  const fs::path copy = project.path().parent_path() / "copy";
  fs::create_directory(copy);
  for (const char* part : {"runs", "model", "xffl.yaml"})
    fs::copy(project.path() / part, copy / part, fs::copy_options::recursive);
  const fs::path current = copy / "runs/0001/CURRENT";
  ASSERT_FALSE(fs::is_symlink(current));
  ASSERT_EQ(project.xffl({"journal", "adopt", "-p", copy.string()}).exit_code, 0);
  EXPECT_EQ(fs::read_symlink(current), "r0003/global");
}

// The run has a copy.
TEST(Copy, OfTheFirstModelSufficesToContinue) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:8"}}).exit_code, 128 + SIGKILL);
  std::filesystem::rename(project.path() / "model", project.path() / "moved");
  const ProcessResult again = project.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(project.count_events("published"), 1);
}

// The journal's database is damaged: the message names the repair command, and the repaired run
// continues.
TEST(Damage, IsRepairedAndTheRunContinues) {
  Project project;
  const std::string expected = undisturbed_sha256(project);
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:20"}}).exit_code, 128 + SIGKILL);
  const std::vector<std::string> repair = {"journal", "repair", "-p", project.path().string()};
  const ProcessResult whole = project.xffl(repair);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NE(whole.out.find("is intact: nothing was changed"), std::string::npos) << whole.out;

  const std::filesystem::path journal = project.run_folder() / "journal.db";
  std::filesystem::remove(journal.string() + "-wal");
  write_file_atomic(journal, std::string(8192, 'x'));
  const ProcessResult refused = project.run();
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("xffl journal repair"), std::string::npos) << refused.err;
  const ProcessResult repaired = project.xffl(repair);
  EXPECT_EQ(repaired.exit_code, 0) << repaired.err;
  EXPECT_NE(repaired.out.find("is repaired, with"), std::string::npos) << repaired.out;
  ASSERT_EQ(project.run().exit_code, 0);
  EXPECT_EQ(project.current_sha256(), expected);
  EXPECT_EQ(project.trainings(), kOnceEach);
}

// The run would repeat the trainings of the lost events.
TEST(Damage, ALossNeedsTheConsentOfTheUser) {
  namespace fs = std::filesystem;
  Project project;
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:20"}}).exit_code, 128 + SIGKILL);
  const fs::path journal = project.run_folder() / "journal.db";
  const fs::path mirror = project.run_folder() / "journal.jsonl";
  fs::remove(journal.string() + "-wal");
  write_file_atomic(journal, std::string(8192, 'x'));
  test::flip_byte(mirror, static_cast<std::streamoff>(fs::file_size(mirror) / 2));
  const std::string damaged = read_file(mirror, 1 << 20);
  std::vector<std::string> repair = {"journal", "repair", "-p", project.path().string()};
  const ProcessResult refused = project.xffl(repair);
  EXPECT_EQ(refused.exit_code, exit_code(ErrorKind::kCorrupt)) << refused.out;
  EXPECT_NE(refused.err.find("--accept-loss"), std::string::npos) << refused.err;
  EXPECT_EQ(read_file(mirror, 1 << 20), damaged);
  repair.emplace_back("--accept-loss");
  const ProcessResult accepted = project.xffl(repair);
  EXPECT_EQ(accepted.exit_code, 0) << accepted.err;
  EXPECT_NE(accepted.out.find("later events are lost"), std::string::npos) << accepted.out;
}

// Kills the coordinator repeatedly, a little later each time, until the run completes.
TEST(Kill, AtRandomInstantsChangesNothing) {
  Project project;
  project.set_training_time(50);
  project.write_config();
  const std::string expected = undisturbed_sha256(project);
  std::mt19937 random(7);
  for (int trial = 0; trial < 15; ++trial) {
    for (int kill_number = 0; kill_number < 4; ++kill_number) {
      auto run = project.start_run();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
      run.kill();
    }
    const ProcessResult resumed = project.run();
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_undisturbed_result(project, expected, "trial " + std::to_string(trial));
    project.forget_runs();
  }
}

TEST(SecondCoordinator, IsRejectedWithTheFirstOnesName) {
  Project project;
  project.set_rounds(1);
  auto run = project.start_held_run();
  const ProcessResult second = project.run();
  EXPECT_EQ(second.exit_code, exit_code(ErrorKind::kBusy));
  EXPECT_NE(second.err.find(std::to_string(run.pid())), std::string::npos) << second.err;
  const std::string log = read_file(project.run_folder() / "coordinator.log", 1 << 20);
  EXPECT_NE(log.find("a second coordinator of this run was refused"), std::string::npos) << log;
  EXPECT_EQ(log.find("the run has ended"), std::string::npos) << "it goes on: " << log;
  project.release();
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(project.trainings().size(), 2u);
}

void expect_jobs_ended(const Project& project) {
  for (const char* name : {"alba", "brno"})
    for (const std::string& job : project.jobs(name))
      EXPECT_TRUE(test::job_ends(job)) << name << "'s job still runs";
}

test::StartedRun start_hanging_jobs(Project& project) {
  for (const char* name : {"alba", "brno"}) project.set_fault(name, "hang!");
  project.write_config();
  auto run = project.start_run();
  EXPECT_TRUE(project.await_events("submitted", 2));
  return run;
}

TEST(Cancel, EndsARunningCoordinatorAndItsJobs) {
  Project project;
  auto run = start_hanging_jobs(project);
  const ProcessResult cancelled = project.xffl({"cancel", "-p", project.path().string()});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_EQ(run.finish(), exit_code(ErrorKind::kFailed));
  EXPECT_TRUE(project.history().cancelled);
  expect_jobs_ended(project);
  EXPECT_EQ(project.run().exit_code, exit_code(ErrorKind::kFailed));
}

TEST(Cancel, EndsTheJobsOfAKilledCoordinator) {
  Project project;
  auto run = start_hanging_jobs(project);
  run.kill();
  EXPECT_EQ(project.xffl({"cancel", "-p", project.path().string()}).exit_code, 0);
  EXPECT_TRUE(project.history().cancelled);
  expect_jobs_ended(project);
}

/// The number of the first event of `kind` in an undisturbed run.
int count_until(const Project& project, const std::string& kind) {
  EXPECT_EQ(project.run().exit_code, 0);
  int count = 0;
  for (const history::StoredEvent& event : project.events()) {
    ++count;
    if (event.kind == kind) return count;
  }
  ADD_FAILURE() << "there is no " << kind;
  return count;
}

/// Kills the coordinator of a run of one round after its first event of `kind`. brno's update is
/// then damaged here and at the facility.
void lose_update_after(Project& project, const std::string& kind) {
  project.set_rounds(1);
  project.write_config();
  const int last = count_until(project, kind);
  project.forget_runs();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:" + std::to_string(last)}}).exit_code,
            128 + SIGKILL);
  ASSERT_EQ(project.history().rounds.at(1).participants.size(), 2u);
  write_file_atomic(project.run_folder() / "r0001/brno/update/model.safetensors", "rotten");
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(project.path() / "work/test"))
    if (entry.path().string().ends_with("brno/r0001/a1/out/update/model.safetensors"))
      write_file_atomic(entry.path(), "rotten too");
}

// A stored update is damaged while no coordinator runs: it is fetched again, not averaged.
TEST(StoredUpdate, IsVerifiedAfterARestart) {
  Project project;
  const std::string expected = undisturbed_sha256(project);
  const int last = count_until(project, "participants_frozen");
  project.forget_runs();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:" + std::to_string(last)}}).exit_code,
            128 + SIGKILL);
  for (const char* name : {"alba", "brno"}) {
    const auto file = project.run_folder() / "r0001" / name / "update/model.safetensors";
    std::string bytes = read_file(file, 1 << 20);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file_atomic(file, bytes);
  }
  const ProcessResult resumed = project.run();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_undisturbed_result(project, expected, "damaged archive");
}

// A coordinator was killed while it exchanged an earlier attempt's update for its successor: the
// successor has the final name, the earlier one the work name.
TEST(StoredUpdate, AnEarlierAttemptsUpdateBesideItIsDropped) {
  Project project;
  const std::string expected = undisturbed_sha256(project);
  const int frozen = count_until(project, "participants_frozen");
  project.forget_runs();
  project.set_hold();
  project.write_config();
  // Before the record of alba's update: brno's job waits.
  auto run =
      project.start_run({{"XFFL_FAILPOINT", "journal:before:" + std::to_string(frozen - 2)}});
  ASSERT_TRUE(project.await_events("submitted", 2));
  project.release("alba");
  ASSERT_EQ(run.finish(), 128 + SIGKILL);
  const auto update = project.run_folder() / "r0001/alba/update";
  const std::filesystem::path earlier = update.string() + ".e1";
  ASSERT_TRUE(std::filesystem::exists(update));
  std::filesystem::copy(update, earlier, std::filesystem::copy_options::recursive);
  std::string bytes = read_file(earlier / "model.safetensors", 1 << 20);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomic(earlier / "model.safetensors", bytes);
  std::filesystem::remove(earlier / "manifest.json");
  checkpoint::write_manifest(earlier);
  project.release();
  const ProcessResult resumed = project.run();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_undisturbed_result(project, expected, "an earlier attempt's update");
}

// An accepted update stays accepted: it is fetched again also above a limit that is lower since.
TEST(StoredUpdate, IsFetchedAgainUnderALowerMaxChange) {
  Project project;
  project.set_rounds(1);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  const int last = count_until(project, "participants_frozen");
  project.forget_runs();
  ASSERT_EQ(project.run({{"XFFL_FAILPOINT", "journal:after:" + std::to_string(last)}}).exit_code,
            128 + SIGKILL);
  const auto file = project.run_folder() / "r0001/alba/update/model.safetensors";
  std::string bytes = read_file(file, 1 << 20);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomic(file, bytes);
  const auto yaml = project.path() / "xffl.yaml";
  std::string text = read_file(yaml, 1 << 20);
  const std::string policy = "policy: {";
  ASSERT_NE(text.find(policy), std::string::npos) << text;
  text.replace(text.find(policy), policy.size(), policy + "max_change: 1e-9, ");
  write_file_atomic(yaml, text);
  const ProcessResult resumed = project.run();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(project.history().rounds.at(1).participants.size(), 2u);
  EXPECT_EQ(project.trainings().size(), 2u) << "no job trained again";
}

// The stored update is damaged and the facility has removed its copy: the job trains again.
TEST(StoredUpdate, LostHereAndAtTheFacilityIsTrainedAgain) {
  Project project;
  // All updates are accepted and the participants are fixed; the mean is not written yet.
  ASSERT_NO_FATAL_FAILURE(lose_update_after(project, "participants_frozen"));
  const ProcessResult resumed = project.run();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("an accepted update is lost"), std::string::npos) << resumed.err;
  EXPECT_EQ(project.count_events("update_lost"), 1);
  const history::RoundState round = project.history().rounds.at(1);
  EXPECT_TRUE(round.published);
  EXPECT_EQ(round.participants.size(), 2u);
  EXPECT_EQ(round.facilities.at(FacilityName("brno")).accepted->attempt, 2);
}

TEST(StoredUpdate, LostAfterTheMeanIsNotTrainedAgain) {
  Project project;
  ASSERT_NO_FATAL_FAILURE(lose_update_after(project, "aggregated"));
  const ProcessResult resumed = project.run();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(project.history().rounds.at(1).published);
  EXPECT_EQ(project.count_events("update_lost"), 0);
  EXPECT_EQ(project.trainings(), (std::vector<std::string>{"alba 1 1", "brno 1 1"}));
}

}  // namespace
}  // namespace xffl
