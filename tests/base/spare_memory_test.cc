#include "xffl/base/spare_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "support/page_cache.h"
#include "support/temp_dir.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1u << 20;

class SpareMemoryTest : public testing::Test {
 protected:
  test::TempDir dir_;
  SpareMemory spare_;

  void SetUp() override {
    if (!test::has_disk(dir_.path())) GTEST_SKIP() << "the temporary folder is in memory";
    make_dirs(dir_ / "old");
  }
  fs::path file(const std::string& name, uint64_t bytes) {
    write_file_atomic(dir_ / name, std::string(bytes, 'x'));
    return dir_ / name;
  }
};

TEST_F(SpareMemoryTest, DropsTheRequestedNumberOfBytesAndLeavesTheFilesUnchanged) {
  const fs::path a = file("old/a", 8 * kMiB + 100), b = file("old/b", 8 * kMiB);
  spare_.add(dir_ / "old");
  ASSERT_GE(test::bytes_in_memory(a), 8 * kMiB);
  spare_.release(4 * kMiB);
  EXPECT_LE(test::bytes_in_memory(a), 6 * kMiB);
  EXPECT_GE(test::bytes_in_memory(a), 2 * kMiB);
  for (int i = 0; i < 9; ++i) spare_.release(kMiB);
  EXPECT_EQ(test::bytes_in_memory(a), 0u);
  EXPECT_GE(test::bytes_in_memory(b), 2 * kMiB);
  spare_.release(100 * kMiB);
  EXPECT_EQ(test::bytes_in_memory(b), 0u);
  EXPECT_EQ(read_file(a, 9 * kMiB), std::string(8 * kMiB + 100, 'x'));
}

TEST_F(SpareMemoryTest, SkipsMissingAndNonRegularFiles) {
  const fs::path mine = file("mine", kMiB), last = file("old/z", kMiB);
  fs::create_symlink(mine, dir_ / "old/link");
  make_dirs(dir_ / "old/folder");
  file("old/empty", 0);
  const fs::path gone = file("old/gone", kMiB);
  spare_.add(dir_ / "old");
  spare_.add(dir_ / "not there");
  fs::remove(gone);
  spare_.release(10 * kMiB);
  EXPECT_EQ(test::bytes_in_memory(mine), kMiB);
  EXPECT_EQ(test::bytes_in_memory(last), 0u);
}

}  // namespace
}  // namespace xffl
