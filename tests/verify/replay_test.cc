// The replay against an independent program with numpy: both compute the models of a run again.
#include <gmock/gmock.h>

#include <cstdlib>

#include "support/peak_memory.h"
#include "verify/verified_run.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Replay : public test::VerifiedRun {
 protected:
  static void SetUpTestSuite() {
    aggregation_ = "{update: delta, max_share: 0.55}";
    test::VerifiedRun::SetUpTestSuite();
    aggregation_.clear();
  }
  ProcessResult numpy() const {
    return run_process(
        {.argv = {XFFL_SOURCE_DIR "/tests/aggregate/numpy.sh", XFFL_SOURCE_DIR "/.deps",
                  "../verify/replay_with_numpy.py", path().string()},
         .timeout = std::chrono::seconds(120)});
  }
};

TEST_F(Replay, AgreesWithNumpy) {
  const ProcessResult reference = numpy();
  if (reference.out.starts_with("SKIP")) GTEST_SKIP() << reference.out;
  ASSERT_EQ(reference.exit_code, 0) << reference.out << reference.err;
  EXPECT_EQ(reference.out, "2 rounds agree\n");
  EXPECT_EQ(find(check(everything()), "replay").passed, 2);
}

TEST_F(Replay, FailsWhereNumpyDiffers) {
  const fs::path update = path() / "r0002/alba/update/model.safetensors";
  test::flip_byte(update, static_cast<std::streamoff>(fs::file_size(update) - 1));
  const ProcessResult reference = numpy();
  if (reference.out.starts_with("SKIP")) GTEST_SKIP() << reference.out;
  EXPECT_EQ(reference.exit_code, 1);
  EXPECT_THAT(reference.out, HasSubstr("round 2 differs"));
  const verify::Verification result = check(everything());
  EXPECT_EQ(find(result, "replay").passed, 1);
  EXPECT_THAT(failures(result), testing::Contains("replay: round 2"));
}

// A model of several blocks: kBlockElements is 131,072, and a row has 8 elements.
class ReplayOfBlocks : public testing::Test {
 protected:
  void run(int rounds, int rows) {
    project_.set_rounds(rounds);
    project_.set_model_rows(rows);
    project_.write_config();
    const ProcessResult result = project_.run();
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  verify::Check blocks(int count, uint64_t seed) const {
    const verify::Verification result = verify::verify_run(
        history::RunFolder(project_.path() / "runs", RunName("0001")), project_.path(),
        {.replay_blocks = count, .seed = seed, .scratch = scratch_.path()});
    for (const verify::Check& check : result.checks)
      if (check.name == "blocks") return check;
    return {};
  }

  test::Project project_;
  const test::TempDir scratch_;
};

TEST_F(ReplayOfBlocks, TakesTheAskedNumberAndRepeatsItsChoiceBySeed) {
  run(2, 200'000);
  EXPECT_EQ(blocks(3, 1).passed, 3);
  const int64_t all = blocks(1000, 1).passed;
  EXPECT_GE(all, 7);
  // Without the model of round 1 and without stored masters, round 2 still has its evidence.
  fs::remove_all(project_.run_folder() / "r0001/global");
  fs::remove_all(project_.run_folder() / "r0001/master");
  EXPECT_EQ(blocks(1000, 1).passed, all);
  const fs::path update = project_.run_folder() / "r0001/alba/update/model.safetensors";
  test::flip_byte(update, static_cast<std::streamoff>(fs::file_size(update) / 2));
  const verify::Check damaged = blocks(1000, 1);
  EXPECT_EQ(damaged.passed, all - 1);
  ASSERT_EQ(damaged.failures.size(), 1u);
  EXPECT_EQ(damaged.failures[0].subject, "r0002/global");
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
  int found = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const size_t failures = blocks(2, seed).failures.size();
    EXPECT_EQ(blocks(2, seed).failures.size(), failures) << seed;
    found += static_cast<int>(failures);
  }
  EXPECT_GT(found, 0) << "each seed takes the same two blocks";
  EXPECT_LT(found, 24) << "a sample of two blocks does not always hold the damaged one";
}

TEST_F(ReplayOfBlocks, ComputesTheBlocksOfAllBatches) {
  run(1, 1'100'000);
  const fs::path update = project_.run_folder() / "r0001/alba/update/model.safetensors";
  test::flip_byte(update, static_cast<std::streamoff>(fs::file_size(update) - 1));
  const verify::Check all = blocks(1000, 1);
  EXPECT_GT(all.passed, 64) << "the blocks of one batch";
  ASSERT_EQ(all.failures.size(), 1u) << "the last block";
  EXPECT_EQ(all.failures[0].subject, "r0001/global");
}

// Also of models in another type than the default.
TEST_F(ReplayOfBlocks, ComputesTheMeanOfWholeModels) {
  project_.set_aggregation("{update: weights, publish_dtype: fp32}");
  project_.set_policy("{poll_interval: 20ms, max_change: 0}");  // the update leaves little of it
  run(1, 300);
  const verify::Check all = blocks(1000, 1);
  EXPECT_GT(all.passed, 0);
  EXPECT_TRUE(all.failures.empty());
  const verify::Verification whole =
      verify::verify_run(history::RunFolder(project_.path() / "runs", RunName("0001")),
                         project_.path(), {.replay = verify::Rounds{}, .scratch = scratch_.path()});
  EXPECT_EQ(whole.num("failed"), 0) << verify::format_text(whole);
  for (const verify::Check& check : whole.checks) {
    if (check.name == "replay") {
      EXPECT_EQ(check.passed, 1) << verify::format_text(whole);
    }
  }
}

// One round of a model of 96 MiB: the replay hashes and reads 672 MiB in all. A mapped page counts
// while it is resident, so the bound is a fraction of the files and not a few blocks.
TEST(ReplayMemory, DoesNotGrowWithTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers allocate additional memory";
#endif
  constexpr long kAllowedGrowthKiB = 96 << 10;
  constexpr long kBlocksGrowthKiB = 128 << 10;
  test::Project project;
  project.set_rounds(1);
  project.set_model_rows(6 << 20);
  project.write_config();
  ASSERT_EQ(project.run().exit_code, 0);
  ASSERT_GE(fs::file_size(project.run_folder() / "r0000/master/model.safetensors"), 192u << 20);
  const history::RunFolder folder(project.path() / "runs", RunName("0001"));
  const test::TempDir scratch;
  const auto growth = [&](long allowed, verify::Options options) {
    options.scratch = scratch.path();
    return test::lowest_growth_in_child(allowed, [&] {
      const verify::Verification result = verify::verify_run(folder, project.path(), options);
      if (result.num("failed") > 0) throw Error(ErrorKind::kCorrupt, verify::format_text(result));
    });
  };
  const long replay = growth(kAllowedGrowthKiB, {.replay = verify::Rounds{}});
  EXPECT_GE(replay, 0) << "the verification failed";
  EXPECT_LT(replay, kAllowedGrowthKiB);
  RecordProperty("replay_kib", std::to_string(replay));
  // All 384 blocks and their evidence are 480 MiB of files and 192 MiB of values.
  const long blocks = growth(kBlocksGrowthKiB, {.replay_blocks = 100'000});
  EXPECT_GE(blocks, 0) << "the verification failed";
  EXPECT_LT(blocks, kBlocksGrowthKiB);
  RecordProperty("blocks_kib", std::to_string(blocks));
}

}  // namespace
}  // namespace xffl
