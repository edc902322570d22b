#include "xffl/history/run_folder.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/thrown.h"

namespace xffl::history {
namespace {

TEST(RunFolder, CountsRunsAndIgnoresOtherFolders) {
  test::TempDir dir;
  EXPECT_FALSE(latest_run(dir.path() / "absent"));
  EXPECT_EQ(next_run(dir.path() / "absent").str(), "0001");
  for (const char* name : {"0002", "0010", "notes", "12", "00x3"})
    std::filesystem::create_directory(dir.path() / name);
  EXPECT_EQ(latest_run(dir.path())->str(), "0010");
  EXPECT_EQ(next_run(dir.path()).str(), "0011");
}

// A new run would train everything again.
TEST(RunFolder, AFolderThatCannotBeListedIsNotWithoutRuns) {
  test::TempDir dir;
  std::filesystem::create_directory_symlink(dir / "loop", dir / "loop");
  EXPECT_EQ(test::kind_of([&] { latest_run(dir / "loop"); }), ErrorKind::kIo);
  EXPECT_EQ(test::kind_of([&] { next_run(dir / "loop"); }), ErrorKind::kIo);
}

TEST(RunFolder, LaysOutRounds) {
  const RunFolder folder("/p/runs", RunName("0003"));
  EXPECT_EQ(folder.global(2), "/p/runs/0003/r0002/global");
  EXPECT_EQ(folder.facility(2, FacilityName("alba")), "/p/runs/0003/r0002/alba");
}

}  // namespace
}  // namespace xffl::history
