#include "xffl/base/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/temp_dir.h"
#include "support/thrown.h"

namespace xffl {
namespace {

TEST(RequireSpace, ErrorNamesNeededFreeAndMissingBytes) {
  EXPECT_NO_THROW(require_space("there", 1000, with_margin(1000)));
  EXPECT_EQ(test::message_of(ErrorKind::kIo, [] { require_space("there", 64, 77); }),
            "not enough space in there: 1048641 bytes are needed, 77 are free; free at least "
            "1048564 bytes (or raise the quota) and run again");
}

TEST(RequireSpace, ChecksTheNearestExistingAncestorOfAMissingFolder) {
  const test::TempDir dir;
  EXPECT_NO_THROW(require_space(dir / "a" / "b", 1));
  EXPECT_THAT(test::message_of(ErrorKind::kIo, [&] { require_space(dir / "a" / "b", 1ull << 60); }),
              testing::HasSubstr("not enough space in " + dir.path().string() + ": "));
}

TEST(RequireSpace, ChecksTheCurrentFolderForAnEmptyPath) {
  const std::filesystem::path none = std::filesystem::path("out").parent_path();
  EXPECT_NO_THROW(require_space(none, 1));
  EXPECT_EQ(test::kind_of([&] { require_space(none, 1ull << 60); }), ErrorKind::kIo);
}

}  // namespace
}  // namespace xffl
