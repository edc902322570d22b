#include "growing_file.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "xffl/base/error.h"

namespace xffl::exports {
namespace {

TEST(GrowingFile, WritesSeveralBlocksAndAppendsToThem) {
  const test::TempDir folder;
  std::string content;
  for (int part = 0; part < 5; ++part)
    content += std::string(700'000, static_cast<char>('a' + part));
  for (const size_t size : {size_t{2'100'000}, content.size()}) {
    GrowingFile file(folder / "file");
    for (size_t at = 0; at < size; at += 700'000) file.add(content.substr(at, 700'000));
    file.finish();
    EXPECT_EQ(file.size_bytes(), size);
    EXPECT_TRUE(read_file(folder / "file", 1 << 24) == content.substr(0, size)) << size;
  }
}

// Another user of a shared folder may have put the link there.
TEST(GrowingFile, FollowsNoSymbolicLink) {
  const test::TempDir folder;
  std::filesystem::create_symlink(folder / "elsewhere", folder / "file");
  EXPECT_THROW(GrowingFile(folder / "file"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

}  // namespace
}  // namespace xffl::exports
