// The replay against an independent program with numpy: both compute the models of a run again.
#include <gmock/gmock.h>

#include <cstdlib>

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

}  // namespace
}  // namespace xffl
