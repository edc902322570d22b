// The coordinator's machine loses power and all unsynced data. The continued run has the model of
// an undisturbed run.
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>

#include "e2e/project.h"
#include "support/lossy_disk.h"

namespace xffl {
namespace {

// SIGKILL at journal records, then the disk is reduced to its synced data. With XFFL_CAMPAIGN=1 at
// every record.
TEST(PowerLoss, AtJournalRecordsLosesNoRound) {
  test::Project project;
  const std::string expected = test::undisturbed_sha256(project);
  const int step = std::getenv("XFFL_CAMPAIGN") != nullptr ? 1 : 9;
  const std::filesystem::path runs = project.path() / "runs";
  int kills = 0, lost = 0;
  for (const char* side : {"before", "after"}) {
    for (int record = side[0] == 'b' ? 1 : step;; record += step) {
      std::filesystem::create_directories(runs);
      const test::LossyDisk disk(runs, XFFL_BINARY_DIR "/bin/xffl-lossy-disk.so");
      const std::string failpoint = std::string("journal:") + side + ":" + std::to_string(record);
      auto environment = disk.environment();
      environment["XFFL_FAILPOINT"] = failpoint;
      const ProcessResult killed = project.run(environment);
      if (killed.exit_code == 0) {
        project.forget_runs();
        break;  // the run has fewer records
      }
      ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << failpoint << killed.err;
      ++kills;
      lost += disk.lose_power();
      const ProcessResult resumed = project.run();
      ASSERT_EQ(resumed.exit_code, 0) << failpoint << resumed.err;
      test::expect_undisturbed_result(project, expected, failpoint);
      project.forget_runs();
    }
  }
  std::cout << kills << " losses of power; " << lost << " files lost bytes\n";
  EXPECT_GE(kills, 8);
  EXPECT_GT(lost, 0) << "the disk lost nothing: was the library loaded?";
}

}  // namespace
}  // namespace xffl
