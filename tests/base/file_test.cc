#include "xffl/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace xffl {
namespace {

TEST(WriteFileAtomic, ReplacesTheFileAndLeavesNoTempFile) {
  test::TempDir dir;
  write_file_atomic(dir.path() / "a", "one");
  write_file_atomic(dir.path() / "a", "two");
  EXPECT_EQ(read_file(dir.path() / "a", 100), "two");
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path()))
    ++entries;
  EXPECT_EQ(entries, 1);
}

TEST(WriteFileAtomic, ReplacesTheLongerRestOfAnInterruptedWrite) {
  test::TempDir dir;
  write_file_atomic(dir / "a.tmp", "a longer text");
  write_file_atomic(dir / "a", "text");
  EXPECT_EQ(read_file(dir / "a", 100), "text");
}

// In a shared folder the link may lead to another user's file.
TEST(WriteFileAtomic, DoesNotFollowALinkAtTheTemporaryName) {
  const test::TempDir dir;
  write_file_atomic(dir / "other", "other");
  std::filesystem::create_symlink(dir / "other", dir / "a.tmp");
  EXPECT_EQ(test::kind_of([&] { write_file_atomic(dir / "a", "text"); }), ErrorKind::kIo);
  EXPECT_EQ(read_file(dir / "other", 100), "other");
}

TEST(WriteFileAtomic, CreatesFilesWithMode0600ByDefault) {
  test::TempDir dir;
  write_file_atomic(dir.path() / "a", "secret");
  struct stat info {};
  ASSERT_EQ(::stat((dir.path() / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

// A power loss could otherwise leave the final name without the content.
TEST(WriteFileAtomic, SyncsTheContent) {
  const test::TempDir dir;
  test::synced_sizes.clear();
  write_file_atomic(dir / "a", "content");
  EXPECT_TRUE(test::is_synced(dir / "a"));
}

TEST(WriteFileAtomic, ErrorNamesThePathWhenTheFolderIsMissing) {
  try {
    write_file_atomic("/nonexistent-folder/a", "x");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("/nonexistent-folder/a"), std::string::npos);
  }
}

TEST(ReadFile, RejectsFilesAboveTheSizeLimit) {
  test::TempDir dir;
  write_file_atomic(dir.path() / "a", std::string(1000, 'x'));
  EXPECT_EQ(read_file(dir.path() / "a", 1000).size(), 1000u);
  EXPECT_THROW(read_file(dir.path() / "a", 999), Error);
}

TEST(MappedFile, MapsFilesAndAcceptsEmptyFiles) {
  test::TempDir dir;
  write_file_atomic(dir.path() / "a", "hello");
  write_file_atomic(dir.path() / "empty", "");
  MappedFile file(dir.path() / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()),
            "hello");
  EXPECT_TRUE(MappedFile(dir.path() / "empty").bytes().empty());
}

TEST(MappedFile, RejectsFifosAndFolders) {
  test::TempDir dir;
  const auto fifo = dir.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THROW(MappedFile{fifo}, Error);
  EXPECT_THROW(MappedFile{dir.path()}, Error);
}

TEST(MakeDirs, CreatesFoldersWithMode0700AndFailsOnAFileInThePath) {
  test::TempDir dir;
  make_dirs(dir.path() / "a" / "b");
  struct stat info {};
  ASSERT_EQ(::stat((dir.path() / "a" / "b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0700u);
  write_file_atomic(dir.path() / "file", "");
  EXPECT_THROW(make_dirs(dir.path() / "file" / "b"), Error);
}

// The text is longer than the largest single write.
TEST(File, WritesAndReadsAtAnOffset) {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "file";
  const UniqueFd fd = open_file(path, O_RDWR | O_CREAT);
  std::string text(3'000'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  write_at(fd.get(), 1000, std::as_bytes(std::span(text)), path);
  std::string back(text.size() + 1, '?');
  const auto buffer = std::as_writable_bytes(std::span(back));
  EXPECT_EQ(read_at(fd.get(), 1000, buffer, path), text.size());
  EXPECT_TRUE(back == text + "?");
  EXPECT_EQ(read_at(fd.get(), 1001, buffer.first(5), path), 5u);
  EXPECT_EQ(back.substr(0, 5), text.substr(1, 5));
  EXPECT_THROW(read_at(-1, 0, buffer, path), Error);
  EXPECT_THROW(write_at(-1, 0, buffer, path), Error);
}

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
