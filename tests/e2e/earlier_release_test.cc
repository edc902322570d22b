// A run that an earlier release has begun continues.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "e2e/project.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

// tests/golden/run/killed_in_round_2.tar.gz is a project of xffl 0.1.0 of 2026-11-21, the release
// of tests/golden/journal, at this path: the coordinator was killed when the journal had the first
// submission of round 2, and both jobs of the round have ended since. The paths are part of the
// training, so the test puts the project there again.
constexpr const char* kPlace = "/tmp/xffl-earlier-release";

class EarlierRelease : public testing::Test {
 protected:
  EarlierRelease() {
    EXPECT_EQ(::flock(lock_.get(), LOCK_EX), 0);
    fs::remove_all(kPlace);
    make_dirs(kPlace);
    const ProcessResult result = run_process(
        {.argv = {"tar", "-xzf", XFFL_SOURCE_DIR "/tests/golden/run/killed_in_round_2.tar.gz", "-C",
                  kPlace}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    fs::create_symlink(XFFL_BINARY_DIR "/bin/xffl-fake-trainer", fs::path(kPlace) / "trainer");
  }
  ~EarlierRelease() override {
    std::error_code none;
    fs::remove_all(kPlace, none);
  }
  static fs::path project() { return fs::path(kPlace) / "project"; }

  // Several clones of the source may run this test.
  const UniqueFd lock_{
      ::open((std::string(kPlace) + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
};

TEST_F(EarlierRelease, ARunKilledInTheMiddleOfARoundContinues) {
  test::Project undisturbed;
  const std::string expected = test::undisturbed_sha256(undisturbed);
  const fs::path run = project() / "runs/0001";
  const size_t recorded = history::read_events(run / "journal.db").size();
  EXPECT_EQ(recorded, 24u);
  const ProcessResult result =
      run_process({.argv = {XFFL_BINARY_DIR "/bin/xffl", "run", "-p", project().string()},
                   .timeout = std::chrono::seconds(180)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const history::RunState state = history::replay(history::read_events(run / "journal.db"));
  EXPECT_TRUE(state.completed);
  EXPECT_EQ(state.rounds.at(3).model_sha256, expected);
  for (int round = 1; round <= 3; ++round)
    EXPECT_EQ(state.rounds.at(round).participants.size(), 2u) << round;
  std::string trainings = read_file(project() / "trainings.log", 1 << 16);
  EXPECT_EQ(std::count(trainings.begin(), trainings.end(), '\n'), 6) << trainings;
}

}  // namespace
}  // namespace xffl
