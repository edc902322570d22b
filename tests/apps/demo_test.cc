// The folder of `xffl demo`. The demo itself: scripts/quickstart.sh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// With the text of one language the demo ends before its first step.
ProcessResult demo(const fs::path& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> argv = {
      XFFL_BINARY_DIR "/bin/xffl", "demo", "--out", folder.string(), "--text", "it=/dev/null"};
  argv.insert(argv.end(), more.begin(), more.end());
  ProcessResult result = run_process({.argv = argv, .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(result.exit_code, exit_code(ErrorKind::kUsage)) << result.err;
  return result;
}

TEST(Demo, TakesNoFolderWithOtherFiles) {
  const test::TempDir dir;
  write_file_atomic(dir / "notes.txt", "of the user");
  EXPECT_THAT(demo(dir.path()).err, HasSubstr("holds other files"));
  EXPECT_FALSE(fs::exists(dir / "demo.json"));
}

TEST(Demo, ContinuesWithTheSameOptionsOnly) {
  const test::TempDir dir;
  for (const char* call : {"first", "second"})
    EXPECT_THAT(demo(dir / "demo").err, HasSubstr("--text is needed for both languages")) << call;
  EXPECT_THAT(demo(dir / "demo", {"--rounds", "4"}).err,
              HasSubstr("holds a demo with other options"));
}

}  // namespace
}  // namespace xffl
