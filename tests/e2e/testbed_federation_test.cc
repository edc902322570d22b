// Federations of real facilities have the model of local facilities, also when the coordinator is
// killed during the run.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

#include "e2e/random_kills.h"
#include "e2e/testbed_project.h"

namespace xffl {
namespace {

using test::local_sha256;
using test::TestbedProject;

TEST(TestbedFederation, GivesTheModelOfLocalFacilities) {
  TestbedProject project;
  NEED_TESTBED(project);
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  project.expect_result(local_sha256());
}

// Data movers without a shell, noisy login shells, an sshd with one new connection and two sessions
// at a time, and controllers that forget ended jobs after two seconds, without accounting.
TEST(TestbedFederation, WorksWithDataMoversNoisyShellsAndForgetfulControllers) {
  TestbedProject project({"--mover", "--noisy", "--min-job-age", "2", "--max-startups", "1:1:1",
                          "--max-sessions", "2"});
  NEED_TESTBED(project);
  const test::Facility& alba = project.facility("alba");
  EXPECT_NE(alba.exec_as_user({"sacct"}).err.find("accounting storage is disabled"),
            std::string::npos);
  project.place("alba",
                placement(alba, "    transfer: {hosts: ['" + alba.mover + "'], shell: false}\n"));
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  project.expect_result(local_sha256());
}

// Compute nodes mount the scratch at another path than the log-in nodes, where they have nothing.
TEST(TestbedFederation, JobsRunInTheFoldersThatComputeNodesMount) {
  TestbedProject project({"--compute-scratch", "/compute"});
  NEED_TESTBED(project);
  for (const char* name : {"alba", "brno"}) {
    const test::Facility& facility = project.facility(name);
    test::Placement place =
        placement(facility, "    compute_mounts: ['" + facility.scratch + ":/compute', /data]\n");
    place.trainings = "/compute/trainings.log";
    project.place(name, place);
  }
  project.write_config();
  const ProcessResult result = project.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  project.expect_result(local_sha256());
}

// SIGKILL at a sample of the journal records; the same command continues the run. With
// XFFL_CAMPAIGN=1 at every record.
TEST(TestbedFederation, SurvivesKillsAtJournalRecords) {
  TestbedProject project;
  NEED_TESTBED(project);
  const std::string expected = local_sha256();
  const int stride = std::getenv("XFFL_CAMPAIGN") != nullptr ? 1 : 14;
  int kills = 0;
  for (int record = 1 + stride / 2;; record += stride) {
    const std::string failpoint =
        (record % 2 == 0 ? "journal:before:" : "journal:after:") + std::to_string(record);
    const ProcessResult killed = project.run({{"XFFL_FAILPOINT", failpoint}});
    if (killed.exit_code == 0) break;  // the run has fewer records
    ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
    ++kills;
    const ProcessResult resumed = project.run();
    ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
    project.expect_result(expected, failpoint);
    project.forget_runs();
  }
  EXPECT_GE(kills, 40 / stride - 1);
  std::cout << kills << " kills at records\n";
}

// SIGKILL at random instants. XFFL_CAMPAIGN is the number of kills.
TEST(TestbedFederation, SurvivesKillsAtRandomInstants) {
  TestbedProject project;
  NEED_TESTBED(project);
  const std::string expected = local_sha256();
  test::kill_at_random_instants([&] { return project.start_run(); },
                                [&](const std::string& context) {
                                  const ProcessResult resumed = project.run();
                                  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
                                  project.expect_result(expected, context);
                                  project.forget_runs();
                                });
}

}  // namespace
}  // namespace xffl
