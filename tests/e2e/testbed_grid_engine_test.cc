// A federation of a facility with Slurm, alba, and a facility with Grid Engine, brno.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "e2e/project.h"
#include "e2e/random_kills.h"
#include "support/testbed.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

using std::chrono::seconds;
using test::Facility;

class TestbedGridEngine : public testing::Test {
 protected:
  TestbedGridEngine() : testbed_({"alba"}) {
    if (!testbed_.up()) return;
    testbed_.add({"brno"}, {"--queue", "gridengine"});
    if (!testbed_.up()) return;
    place("alba", "slurm", "nodes: 2, time: 5m, warning: 1m");
    place("brno", "gridengine", "nodes: 2, parallel_environment: nodes, time: 5m, warning: 1m");
    project_.write_config();
    write_file_atomic(project_.path() / "known_hosts",
                      read_file(testbed_.facility("brno").known_hosts, 1 << 20));
  }

  void place(const std::string& name, const std::string& scheduler, const std::string& settings) {
    const Facility& there = testbed_.facility(name);
    project_.place(
        name,
        {"    access: ssh\n    scheduler: " + scheduler + "\n    ssh: {hosts: ['" + there.host +
             "'], user: " + there.user + ", keys: ['" + there.key.string() +
             "'], agent: false}\n    " + scheduler + ": {settle_time: 2s, command_timeout: 20s, " +
             settings + "}\n    poll_interval: 300ms\n    workdir: " + there.scratch + "/work\n",
         there.scratch + "/trainings.log", there.folder / "scratch/trainings.log"});
  }
  ProcessResult run(std::map<std::string, std::string> env = {}) const {
    return project_.xffl({"run", "-p", project_.path().string()}, std::move(env), seconds(180));
  }
  static std::string expected_sha256(int rounds = 3) {
    test::Project local;
    local.set_rounds(rounds);
    local.write_config();
    EXPECT_EQ(local.run().exit_code, 0);
    return local.current_sha256();
  }
  /// Every training has begun once, and no job is left.
  void expect_result(const std::string& sha256, const std::string& context, int rounds = 3) const {
    std::vector<std::string> once;
    for (const std::string facility : {"alba", "brno"})
      for (int round = 1; round <= rounds; ++round)
        once.push_back(facility + " " + std::to_string(round) + " 1");
    EXPECT_EQ(project_.current_sha256(), sha256) << context;
    EXPECT_EQ(project_.trainings(), once) << context;
    EXPECT_EQ(project_.started_trainings(), once) << context;
    EXPECT_TRUE(project_.history().completed) << context;
    const auto left = [&] { return brno().exec_as_user({"qstat"}).out; };
    EXPECT_TRUE(test::await([&] { return left().empty(); })) << context << left();
  }
  void forget_runs() const {
    project_.forget_runs();
    for (const char* name : {"alba", "brno"})
      testbed_.facility(name).exec_on_login({"rm", "-rf", "/scratch/work"});
  }
  const Facility& brno() const { return testbed_.facility("brno"); }

  test::Testbed testbed_;
  test::Project project_;
};

TEST_F(TestbedGridEngine, GivesTheModelOfLocalFacilitiesAlsoAfterKillsAtJournalRecords) {
  if (!testbed_.up()) GTEST_SKIP() << testbed_.why_not();
  const std::string expected = expected_sha256();
  const int stride = std::getenv("XFFL_CAMPAIGN") != nullptr ? 1 : 24;
  int kills = 0;
  for (int record = 1 + stride / 2;; record += stride) {
    const std::string failpoint =
        (record % 2 == 0 ? "journal:before:" : "journal:after:") + std::to_string(record);
    const ProcessResult killed = run({{"XFFL_FAILPOINT", failpoint}});
    if (killed.exit_code == 0) {  // the run has fewer records: it is undisturbed
      expect_result(expected, "undisturbed");
      break;
    }
    ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
    ++kills;
    const ProcessResult resumed = run();
    ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
    expect_result(expected, failpoint);
    forget_runs();
  }
  EXPECT_GE(kills, 40 / stride);
  std::cout << kills << " kills at records\n";
}

TEST_F(TestbedGridEngine, SurvivesKillsAtRandomInstants) {
  if (!testbed_.up()) GTEST_SKIP() << testbed_.why_not();
  const std::string expected = expected_sha256();
  test::kill_at_random_instants([&] { return project_.start_run(); },
                                [&](const std::string& context) {
                                  const ProcessResult resumed = run();
                                  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
                                  expect_result(expected, context);
                                  forget_runs();
                                });
}

// sge_qmaster is frozen for two seconds, or killed, when the journal records the
// intent of a submission: each training happens once.
TEST_F(TestbedGridEngine, EverySubmissionToAFrozenOrKilledQmasterTrainsOnce) {
  if (!testbed_.up()) GTEST_SKIP() << testbed_.why_not();
  constexpr int kRounds = 2;
  project_.set_rounds(kRounds);
  project_.write_config();
  auto coordinator = project_.start_run({{"XFFL_FAILPOINT", "journal:stop:submit_intended"}});
  int disturbed = 0;
  while (coordinator.await_stop(seconds(120))) {
    const bool ours = project_.events().back().facility == "brno";
    const bool freezes = ours && disturbed++ % 2 == 0;
    if (freezes)
      brno().signal_daemon("sge_qmaster", SIGSTOP);
    else if (ours)
      brno().stop_daemon("sge_qmaster", "KILL");
    coordinator.signal(SIGCONT);
    if (!ours) continue;
    std::this_thread::sleep_for(seconds(2));
    if (freezes)
      brno().signal_daemon("sge_qmaster", SIGCONT);
    else
      brno().start_daemon("sge_qmaster");
  }
  EXPECT_EQ(coordinator.finish(), 0);
  EXPECT_GE(disturbed, kRounds);
  expect_result(expected_sha256(kRounds), std::to_string(disturbed) + " disturbed submissions",
                kRounds);
}

}  // namespace
}  // namespace xffl
