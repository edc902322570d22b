// Federations of facilities behind real SSH and Slurm: the same model as on this machine, whatever
// happens on the way.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "e2e/bed_project.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

using std::chrono::seconds;
using test::BedProject;

#define NEED(project) \
  if (!(project).up()) GTEST_SKIP() << (project).why_not()

const std::vector<std::string> kOnceEach = {"alba 1 1", "alba 2 1", "alba 3 1",
                                            "brno 1 1", "brno 2 1", "brno 3 1"};

// The same project with its facilities in folders of this machine.
std::string local_sha256() {
  test::Project project;
  EXPECT_EQ(project.run().exit_code, 0);
  return project.current_sha256();
}

void expect_undisturbed_result(const BedProject& project, const std::string& sha256,
                               const std::string& what = "") {
  EXPECT_EQ(project.current_sha256(), sha256) << what;
  EXPECT_EQ(project.trainings(), kOnceEach) << what;
  std::map<int, int> published;
  for (const journal::Event& event : project.events())
    if (event.kind == "published") ++published[event.round];
  EXPECT_EQ(published, (std::map<int, int>{{1, 1}, {2, 1}, {3, 1}})) << what;
  for (const char* name : {"alba", "brno"}) EXPECT_EQ(project.jobs_left(name), "") << what;
}

int finish(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(BedFederation, GivesTheModelOfLocalFacilities) {
  BedProject project;
  NEED(project);
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_undisturbed_result(project, local_sha256());
}

// A mover without a shell moves alba's files; brno's log-in shell chatters and its sshd takes one
// connection and two sessions at a time; both forget ended jobs at once.
TEST(BedFederation, PassesThroughMoversAndNoiseAndForgetfulControllers) {
  BedProject project({"--mover", "--noisy", "--min-job-age", "2", "--max-startups", "1:1:1",
                      "--max-sessions", "2"});
  NEED(project);
  const test::Facility& alba = project.facility("alba");
  project.place(
      "alba", placement(alba, 2, "    transfer: {hosts: ['" + alba.mover + "'], shell: false}\n"));
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_undisturbed_result(project, local_sha256());
}

// SIGKILL at journal records, the same command continues. XFFL_CAMPAIGN=1: at every record.
TEST(BedFederation, SurvivesKillsAtJournalRecords) {
  BedProject project;
  NEED(project);
  const std::string expected = local_sha256();
  const int stride = std::getenv("XFFL_CAMPAIGN") != nullptr ? 1 : 14;
  int kills = 0;
  for (int record = 1 + stride / 2;; record += stride) {
    const std::string failpoint =
        (record % 2 == 0 ? "journal:before:" : "journal:after:") + std::to_string(record);
    const ProcessResult killed = project.run({{"XFFL_FAILPOINT", failpoint}});
    if (killed.exit_code == 0) break;  // there are fewer records than that
    ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
    ++kills;
    const ProcessResult resumed = project.run();
    ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
    expect_undisturbed_result(project, expected, failpoint);
    project.forget_runs();
  }
  EXPECT_GE(kills, 40 / stride - 1);
  std::cout << kills << " kills at records\n";
}

// Killed at random instants, again and again. XFFL_CAMPAIGN is the number of kills.
TEST(BedFederation, SurvivesKillsAtRandomInstants) {
  BedProject project;
  NEED(project);
  const std::string expected = local_sha256();
  const char* size = std::getenv("XFFL_CAMPAIGN");
  const int wanted = size == nullptr ? 4 : std::atoi(size);
  std::mt19937 random(11);
  for (int kills = 0; kills < wanted;) {
    for (int i = 0; i < 4 && kills < wanted; ++i, ++kills) {
      const pid_t pid = project.start_run();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 6000));
      ::kill(pid, SIGKILL);
      finish(pid);
    }
    const ProcessResult resumed = project.run();
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_undisturbed_result(project, expected, std::to_string(kills) + " kills");
    project.forget_runs();
  }
}

// Everything that a log-in node can lose, one after the other, in one run.
TEST(BedFederation, OutlivesOutages) {
  BedProject project;
  NEED(project);
  project.set_training_time(3000);
  project.write_config();
  const pid_t pid = project.start_run();
  const test::Facility &alba = project.facility("alba"), &brno = project.facility("brno");
  ASSERT_TRUE(project.await_events("submitted", 1));
  alba.stop_daemon("slurmctld", "KILL");
  brno.stop_daemon("sshd");
  std::this_thread::sleep_for(seconds(8));
  alba.start_daemon("slurmctld");
  brno.start_daemon("sshd");
  ASSERT_TRUE(project.await_events("published", 1, seconds(120)));
  ASSERT_TRUE(project.await_events("submitted", 3));
  alba.stop_daemon("munged");
  brno.signal_daemon("slurmctld", SIGSTOP);
  std::this_thread::sleep_for(seconds(12));
  alba.start_daemon("munged");
  brno.signal_daemon("slurmctld", SIGCONT);
  EXPECT_EQ(finish(pid), 0);
  expect_undisturbed_result(project, local_sha256());
}

// A link that is cut without a word.
TEST(BedFederation, OutlivesACutLink) {
  BedProject project;
  NEED(project);
  project.set_training_time(3000);
  project.write_config();
  const pid_t pid = project.start_run();
  ASSERT_TRUE(project.await_events("submitted", 2));
  project.facility("alba").cut();
  std::this_thread::sleep_for(seconds(50));
  project.facility("alba").heal();
  EXPECT_EQ(finish(pid), 0);
  expect_undisturbed_result(project, local_sha256());
}

}  // namespace
}  // namespace xffl
