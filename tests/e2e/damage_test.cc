// Bytes that flip at rest in the run folder, and files that the disk cannot read, while the
// coordinator runs: the models stay right.
//
// The coordinator stops itself after each event of a kind, the test damages a file, and the same
// process continues. The oracle: the bytes of the last model are those of an undisturbed run, or
// the run has ended with a message that names the damaged file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "e2e/project.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using test::flip_byte;
using test::Project;
using testing::HasSubstr;
using testing::Not;

class Damage : public testing::Test {
 protected:
  Damage() {
    project_.set_rounds(2);
    project_.set_model_rows(40'000);  // 640 kB: three blocks in bf16
    project_.write_config();
    expected_ = test::undisturbed_sha256(project_);
  }

  // Stops the coordinator at each event of `kind` and calls `damage(n)` at the n-th stop. Returns
  // the exit code.
  int run_with(const std::string& kind, const std::function<void(int)>& damage,
               std::map<std::string, std::string> env = {}) {
    env.emplace("XFFL_FAILPOINT", "journal:stop:" + kind);
    test::StartedRun run = project_.start_run(std::move(env));
    for (int stop = 1; run.await_stop(); ++stop) {
      damage(stop);
      run.signal(SIGCONT);
    }
    return run.finish();
  }
  std::string log() const { return read_file(project_.log(), 16 << 20); }
  fs::path file(const std::string& name) const { return project_.run_folder() / name; }
  static void flip_in_data(const fs::path& path) {
    flip_byte(path, static_cast<std::streamoff>(fs::file_size(path) * 3 / 4));
  }
  // The root hash of the files themselves, not of their manifest.json.
  std::string last_model() const {
    return checkpoint::make_manifest(fs::canonical(file("CURRENT"))).root_sha256();
  }
  void expect_right_model(int exit_code) const {
    EXPECT_EQ(exit_code, 0) << log();
    EXPECT_EQ(last_model(), expected_);
  }

  Project project_;
  std::string expected_;
};

TEST_F(Damage, OfTheMasterBetweenTwoRoundsIsAveragedAway) {
  const int code = run_with("published", [&](int stop) {
    if (stop == 1) flip_in_data(file("r0001/master/model.safetensors"));
  });
  expect_right_model(code);
  EXPECT_THAT(log(), HasSubstr("r0001/master/model.safetensors is damaged"));
  EXPECT_THAT(log(), HasSubstr("damaged model rebuilt"));
}

TEST_F(Damage, OfTheMasterOfAKilledRunIsAveragedAway) {
  test::StartedRun run = project_.start_run({{"XFFL_FAILPOINT", "journal:stop:published"}});
  ASSERT_TRUE(run.await_stop());
  run.kill();
  flip_in_data(file("r0001/master/model.safetensors"));
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
  EXPECT_THAT(again.err, HasSubstr("r0001/master/model.safetensors is damaged"));
}

TEST_F(Damage, OfTheFirstTwoMastersIsRepairedFromTheInput) {
  const int code = run_with("published", [&](int stop) {
    if (stop != 1) return;
    flip_in_data(file("r0000/master/model.safetensors"));
    flip_in_data(file("r0001/master/model.safetensors"));
  });
  expect_right_model(code);
}

TEST_F(Damage, OfAnAcceptedUpdateIsFetchedAgain) {
  const int code = run_with("participants_frozen", [&](int stop) {
    if (stop == 2) flip_in_data(file("r0002/brno/update/model.safetensors"));
  });
  expect_right_model(code);
  EXPECT_THAT(log(), HasSubstr("fetching it again"));
  EXPECT_EQ(project_.trainings().size(), 4u) << "no training was repeated";
}

TEST_F(Damage, OfAnAcceptedUpdateAndItsInputModelIsRepaired) {
  const int code = run_with("participants_frozen", [&](int stop) {
    if (stop != 2) return;
    flip_in_data(file("r0002/brno/update/model.safetensors"));
    flip_in_data(file("r0001/global/model.safetensors"));
  });
  expect_right_model(code);
  EXPECT_EQ(project_.trainings().size(), 4u) << "no training was repeated";
}

// Only the repair of a damaged master reads the updates of an earlier round
// (WithoutARemedyEndsTheRunAndNamesTheFile).
TEST_F(Damage, OfAnEarlierRoundsUpdatesChangesNoLaterModel) {
  project_.set_rounds(3);
  project_.write_config();
  const std::string after_three = test::undisturbed_sha256(project_);
  std::vector<int> damaged_at;
  const int code = run_with("published", [&](int stop) {
    if (stop == 3) return;
    damaged_at.push_back(stop);
    for (const char* name : {"alba", "brno"})
      flip_in_data(file("r000" + std::to_string(stop) + "/" + name + "/update/model.safetensors"));
    if (stop == 2) flip_in_data(file("r0001/master/model.safetensors"));
  });
  EXPECT_EQ(code, 0) << log();
  EXPECT_EQ(damaged_at, (std::vector<int>{1, 2}));
  EXPECT_EQ(last_model(), after_three);
  EXPECT_EQ(project_.trainings().size(), 6u) << "no training was repeated";
  EXPECT_THAT(log(), Not(HasSubstr("is damaged")));
  // The same for a coordinator that starts between the rounds.
  project_.forget_runs();
  test::StartedRun run = project_.start_run({{"XFFL_FAILPOINT", "journal:stop:published"}});
  ASSERT_TRUE(run.await_stop());
  run.kill();
  flip_in_data(file("r0001/alba/update/model.safetensors"));
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), after_three);
}

TEST_F(Damage, OfTheGlobalModelNeverReachesAFacility) {
  const int code = run_with("published", [&](int stop) {
    if (stop == 1) flip_in_data(file("r0001/global/model.safetensors"));
  });
  expect_right_model(code);
  EXPECT_THAT(log(), HasSubstr("r0001/global"));
  EXPECT_EQ(project_.trainings().size(), 4u) << "no job met a damaged model";
}

TEST_F(Damage, OfTheGlobalModelAndItsMasterIsAveragedAway) {
  const int code = run_with("published", [&](int stop) {
    if (stop != 1) return;
    flip_in_data(file("r0001/global/model.safetensors"));
    flip_in_data(file("r0001/master/model.safetensors"));
  });
  expect_right_model(code);
  EXPECT_EQ(project_.trainings().size(), 4u) << "no job met a damaged model";
}

TEST_F(Damage, OfTheLastModelIsRepairedBeforeTheRunIsComplete) {
  const int code = run_with("published", [&](int stop) {
    if (stop == 2) flip_in_data(file("r0002/global/model.safetensors"));
  });
  expect_right_model(code);
}

TEST_F(Damage, WithoutARemedyEndsTheRunAndNamesTheFile) {
  const int code = run_with("published", [&](int stop) {
    if (stop != 1) return;
    flip_in_data(file("r0001/master/model.safetensors"));
    flip_in_data(file("r0001/alba/update/model.safetensors"));
  });
  EXPECT_NE(code, 0);
  EXPECT_THAT(log(), HasSubstr("r0001/master/model.safetensors is damaged"));
  EXPECT_THAT(log(), HasSubstr("r0001/alba/update/model.safetensors is damaged"));
  EXPECT_THAT(log(), HasSubstr("Copy the file from a backup"));
  // The remedy.
  flip_in_data(file("r0001/master/model.safetensors"));
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
}

// The facilities are not to blame: their updates stay where they are.
TEST_F(Damage, OfAnInputModelWithoutARemedyCostsNoUpdate) {
  const fs::path model = project_.path() / "model", moved = project_.path() / "moved";
  const int code = run_with("submitted", [&](int stop) {
    if (stop != 1) return;
    flip_in_data(file("r0000/global/model.safetensors"));
    flip_in_data(file("r0000/master/model.safetensors"));
    fs::rename(model, moved);  // neither of them can be made again
  });
  EXPECT_NE(code, 0);
  EXPECT_THAT(log(), HasSubstr("r0000/global"));
  EXPECT_EQ(project_.count_events("attempt_failed"), 0) << log();
  EXPECT_EQ(project_.count_events("facility_missing"), 0) << log();
  for (const char* name : {"alba", "brno"})
    EXPECT_FALSE(fs::exists(file(std::string("r0001/") + name + "/refused-a1"))) << name;
  fs::rename(moved, model);
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
}

// Reads of a damaged file fail with EIO, as for a bad sector. A file under the same name that
// replaces it can be read.
class UnreadableFiles : public Damage {
 protected:
  std::map<std::string, std::string> disk() const {
    return {{"LD_PRELOAD", XFFL_BINARY_DIR "/bin/xffl-unreadable-disk.so"},
            {"XFFL_UNREADABLE", bad_.string()}};
  }
  void damage(const std::string& name) const { fs::create_hard_link(file(name), bad_); }

 private:
  const fs::path bad_ = project_.path() / "bad-sector";
};

TEST_F(UnreadableFiles, AGlobalModelIsMadeAgainBeforeItsPush) {
  const int code = run_with(
      "published",
      [&](int stop) {
        if (stop == 1) damage("r0001/global/model.safetensors");
      },
      disk());
  expect_right_model(code);
  EXPECT_THAT(log(), HasSubstr("r0001/global/model.safetensors: Input/output error"));
  EXPECT_THAT(log(), HasSubstr("damaged model rebuilt"));
  EXPECT_EQ(project_.trainings().size(), 4u) << "no training was repeated";
}

TEST_F(UnreadableFiles, AMasterIsAveragedAgain) {
  const int code = run_with(
      "published",
      [&](int stop) {
        if (stop != 1) return;
        damage("r0001/master/model.safetensors");
        fs::remove(file("r0001/master.blocks"));  // else the mean maps the file
      },
      disk());
  expect_right_model(code);
  EXPECT_THAT(log(), HasSubstr("r0001/master/model.safetensors: Input/output error"));
  EXPECT_THAT(log(), HasSubstr("damaged model rebuilt"));
}

TEST_F(UnreadableFiles, AnAcceptedUpdateIsFetchedAgain) {
  test::StartedRun run =
      project_.start_run({{"XFFL_FAILPOINT", "journal:stop:participants_frozen"}});
  ASSERT_TRUE(run.await_stop());
  run.kill();
  damage("r0001/alba/update/model.safetensors");
  const ProcessResult again = project_.run(disk());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
  EXPECT_THAT(again.err, HasSubstr("fetching it again"));
  EXPECT_EQ(project_.trainings().size(), 4u) << "no training was repeated";
}

// A journalled run of an earlier release has no block hashes.
class WithoutBlockHashes : public Damage {
 protected:
  void remove_block_hashes() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::recursive_directory_iterator(project_.run_folder()))
      if (entry.path().extension() == ".blocks") paths.push_back(entry.path());
    EXPECT_GE(paths.size(), 6u);
    for (const fs::path& path : paths) fs::remove(path);
  }
  // Kills the coordinator after the first round.
  void run_one_round() {
    test::StartedRun run = project_.start_run({{"XFFL_FAILPOINT", "journal:stop:published"}});
    ASSERT_TRUE(run.await_stop());
    run.kill();
    remove_block_hashes();
  }
};

TEST_F(WithoutBlockHashes, ARunContinues) {
  run_one_round();
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
  EXPECT_TRUE(fs::exists(file("r0001/master.blocks")));
}

TEST_F(WithoutBlockHashes, TheRecordedSha256FindsTheDamage) {
  run_one_round();
  flip_in_data(file("r0001/master/model.safetensors"));
  const ProcessResult again = project_.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(last_model(), expected_);
  EXPECT_THAT(again.err, HasSubstr("r0001/master/model.safetensors is damaged"));
}

// --- each file ---------------------------------------------------------------------------------

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_symlink() && entry.is_regular_file() && entry.file_size() > 0)
      files.push_back(fs::relative(entry.path(), folder));
  std::sort(files.begin(), files.end());
  return files;
}

// XFFL_DAMAGE=all damages each file at each stop of a run, which takes long. By default each file
// is damaged at one of the stops, in turn.
TEST_F(Damage, OfAnyFileNeverGivesAWrongModel) {
  const bool all = std::getenv("XFFL_DAMAGE") != nullptr;
  const std::vector<std::pair<std::string, int>> stops = {
      {"published", 1},     {"pushed", 4},     {"update_accepted", 4}, {"participants_frozen", 2},
      {"round_planned", 2}, {"aggregated", 2}, {"update_accepted", 3}, {"published", 2}};
  size_t num_files = 1, runs = 0, mended = 0;
  for (size_t index = 0; index < num_files; ++index)
    for (size_t each = 0; each < stops.size(); ++each) {
      if (!all && each != index % stops.size()) continue;
      const auto& [kind, wanted] = stops[each];
      std::string damaged;
      const int code = run_with(kind, [&, wanted = wanted](int stop) {
        if (stop != wanted) return;
        const std::vector<fs::path> files = files_of(project_.run_folder());
        num_files = std::max(num_files, files.size());
        if (index >= files.size()) return;
        const fs::path path = project_.run_folder() / files[index];
        damaged = files[index];
        flip_byte(path, static_cast<std::streamoff>(fs::file_size(path) * (index % 5) / 5));
      });
      const std::string context = damaged + " at " + kind + " " + std::to_string(wanted);
      ++runs;
      if (code == 0) {
        EXPECT_EQ(last_model(), expected_) << context;
        ++mended;
      } else {
        EXPECT_NE(log().find(fs::path(damaged).filename()), std::string::npos) << context << "\n"
                                                                               << log();
      }
      project_.forget_runs();
    }
  EXPECT_GT(num_files, 30u);
  EXPECT_GT(mended, runs / 2);
  std::cout << runs << " runs, " << mended << " completed, " << num_files << " files\n";
}

}  // namespace
}  // namespace xffl
