// A federation of a facility with PBS, alba, and a facility with Flux, brno. Their commands are
// programs that answer in the documented formats; the job scripts are the real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <iostream>

#include "e2e/project.h"
#include "e2e/random_kills.h"
#include "support/fake_queues.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

class PbsAndFlux : public testing::Test {
 protected:
  PbsAndFlux() {
    place("alba", "pbs", "nodes: 2, tasks_per_node: 1, queue: workq, chunk: [mem=1gb]");
    place("brno", "flux", "nodes: 2, tasks_per_node: 1, queue: batch");
    project_.write_config();
  }

  void place(const std::string& name, const std::string& scheduler, const std::string& settings) {
    const std::filesystem::path trainings = queues_.folder() / (name + ".log");
    project_.place(name, {"    access: local\n    scheduler: " + scheduler + "\n    " + scheduler +
                              ": {time: 5m, warning: 1m, settle_time: 2s, " + settings +
                              "}\n    poll_interval: 100ms\n    workdir: " + work().string() + "\n",
                          trainings.string(), trainings});
  }
  std::filesystem::path work() const { return queues_.folder() / "work"; }
  static std::string expected_sha256() {
    test::Project local;
    local.write_config();
    EXPECT_EQ(local.run().exit_code, 0);
    return local.current_sha256();
  }
  void expect_result(const std::string& sha256, const std::string& context) const {
    EXPECT_EQ(project_.current_sha256(), sha256) << context;
    EXPECT_EQ(project_.trainings(), test::kOnceEach) << context;
    EXPECT_EQ(project_.started_trainings(), test::kOnceEach) << context;
    EXPECT_TRUE(project_.history().completed) << context;
  }

  void forget_runs() const {
    project_.forget_runs();
    std::filesystem::remove_all(work());
  }

  test::FakeQueues queues_;
  test::Project project_;
};

TEST_F(PbsAndFlux, GivesTheModelOfLocalFacilitiesAlsoAfterKillsAtJournalRecords) {
  const std::string expected = expected_sha256();
  const int stride = std::getenv("XFFL_CAMPAIGN") != nullptr ? 1 : 16;
  int kills = 0;
  for (int record = 1 + stride / 2;; record += stride) {
    const std::string failpoint =
        (kills % 2 == 0 ? "journal:before:" : "journal:after:") + std::to_string(record);
    const ProcessResult killed = project_.run({{"XFFL_FAILPOINT", failpoint}});
    if (killed.exit_code == 0) {  // the run has fewer records: it is undisturbed
      expect_result(expected, "undisturbed");
      break;
    }
    ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
    ++kills;
    const ProcessResult resumed = project_.run();
    ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
    expect_result(expected, failpoint);
    forget_runs();
  }
  EXPECT_GE(kills, 40 / stride);
  std::cout << kills << " kills at records\n";
}

TEST_F(PbsAndFlux, SurviveKillsAtRandomInstants) {
  const std::string expected = expected_sha256();
  test::kill_at_random_instants([&] { return project_.start_run(); },
                                [&](const std::string& context) {
                                  const ProcessResult resumed = project_.run();
                                  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
                                  expect_result(expected, context);
                                  forget_runs();
                                });
}

// The coordinator finds the job by its name.
TEST_F(PbsAndFlux, AJobWhoseSubmissionHasNoAnswerTrainsOnce) {
  for (const char* file : {"lose-answer.pbs", "lose-answer.flux"})
    write_file_atomic(queues_.jobs() / file, "");
  const ProcessResult result = project_.run();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* file : {"lose-answer.pbs", "lose-answer.flux"})
    EXPECT_FALSE(std::filesystem::exists(queues_.jobs() / file)) << "no answer was lost";
  expect_result(expected_sha256(), "two lost answers");
}

TEST_F(PbsAndFlux, TheUserIsWarned) {
  for (const char* command : {"doctor", "plan"}) {
    const ProcessResult result = project_.xffl({command, "-p", project_.path().string()});
    for (const char* manager : {"PBS", "Flux"})
      EXPECT_THAT(result.out + result.err,
                  testing::HasSubstr(manager + std::string(" was written from its documented "
                                                           "formats and has not run on a real "
                                                           "site")))
          << command;
  }
}

}  // namespace
}  // namespace xffl
