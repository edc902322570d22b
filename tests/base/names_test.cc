#include "xffl/base/names.h"

#include <gtest/gtest.h>

#include "xffl/base/error.h"

namespace xffl {
namespace {

TEST(FacilityName, RejectsUnsafeCharactersAndLongNames) {
  EXPECT_NO_THROW(FacilityName("leonardo-2_b"));
  for (const char* bad : {"", "-a", "_a", "A", "a b", "a/b", "a\n", "a;rm", "é", "..", "$(x)"})
    EXPECT_THROW(FacilityName{bad}, Error) << bad;
  EXPECT_NO_THROW(FacilityName(std::string(32, 'a')));
  EXPECT_THROW(FacilityName(std::string(33, 'a')), Error);
}

TEST(RunName, AcceptsOnlyDigits) {
  EXPECT_NO_THROW(RunName("0003"));
  for (const char* bad : {"3", "000a", "../3", "00031/../.."})
    EXPECT_THROW(RunName{bad}, Error) << bad;
}

TEST(JobId, RejectsOptionsAndSeparators) {
  EXPECT_NO_THROW(JobId("12345_7.batch+0"));
  EXPECT_NO_THROW(JobId("1234." + std::string(95, 's'))) << "with the name of a server of PBS";
  EXPECT_THROW(JobId("1234." + std::string(96, 's')), Error);
  for (const char* bad : {"", "-1", "1 2", "1;2", "1\n"}) EXPECT_THROW(JobId{bad}, Error) << bad;
}

TEST(RemotePath, IsAbsoluteWithoutParentComponents) {
  EXPECT_EQ(RemotePath("/a/b//").str(), "/a/b");
  EXPECT_EQ((RemotePath("/a") / "b/c").str(), "/a/b/c");
  EXPECT_EQ((RemotePath("/") / "b").str(), "/b");
  EXPECT_EQ(RemotePath("/a/b").parent().str(), "/a");
  EXPECT_EQ(RemotePath("/a").parent().str(), "/");
  EXPECT_EQ(RemotePath("/a/b").filename(), "b");
  for (const char* bad : {"", "a", "/a/../b", "/..", "/a\nb", "~"})
    EXPECT_THROW(RemotePath{bad}, Error) << bad;
  EXPECT_THROW(RemotePath("/a") / "../b", Error);
  EXPECT_THROW(RemotePath("/a") / "/b", Error);
  EXPECT_THROW(RemotePath("/a") / "", Error) << "the folder itself";
}

}  // namespace
}  // namespace xffl
