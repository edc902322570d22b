#include "xffl/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>

#include "support/failing_call.h"
#include "support/kernel_reads_ahead.h"
#include "support/recorded_syncs.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"

namespace {

std::atomic<size_t> most_bytes_of_a_read = SIZE_MAX;

}  // namespace

extern "C" ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  return ::syscall(SYS_pread64, fd, to, std::min(size, most_bytes_of_a_read.load()), offset);
}

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

constexpr int kNoFilters = 77;

// Calls `body` in a process whose fsync() fails with `error`. 0: `body` returns; 1: it throws kIo.
int outcome_with_failing_fsync(unsigned error, const std::function<void()>& body) {
  return test::in_child([&] {
    if (!test::fail_calls(SYS_fsync, error)) return kNoFilters;
    try {
      body();
    } catch (const Error& problem) {
      return problem.kind() == ErrorKind::kIo ? 1 : 2;
    }
    return 0;
  });
}

// A power loss could otherwise bring the old name back.
TEST(RenameDurable, AFailedSyncOfTheFolderIsAnError) {
  const test::TempDir dir;
  write_file_atomic(dir / "a", "content");
  const int outcome =
      outcome_with_failing_fsync(EIO, [&] { rename_durable(dir / "a", dir / "b"); });
  if (outcome == kNoFilters) GTEST_SKIP() << "needs filters of system calls (seccomp)";
  EXPECT_EQ(outcome, 1);
}

// Some network file systems order renames themselves.
TEST(RenameDurable, AFileSystemMayRefuseToSyncFolders) {
  const test::TempDir dir;
  write_file_atomic(dir / "a", "content");
  const int outcome =
      outcome_with_failing_fsync(EINVAL, [&] { rename_durable(dir / "a", dir / "b"); });
  if (outcome == kNoFilters) GTEST_SKIP() << "needs filters of system calls (seccomp)";
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(read_file(dir / "b", 100), "content");
}

// A failed write of a model would otherwise keep its part of a full disk.
TEST(TempFile, IsRemovedUnlessItIsPublished) {
  const test::TempDir dir;
  {
    const TempFile dropped(dir / "a");
    EXPECT_TRUE(std::filesystem::exists(dropped.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
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

// The pages after the first one are those that a damaged disk would not deliver.
TEST(MappedFile, ReadingAheadNamesTheFileThatWasCut) {
  const test::TempDir dir;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const char* name : {"a", "b"}) write_file_atomic(dir / name, std::string(4 * page, 'x'));
  const MappedFile a(dir / "a");
  MappedFile b(dir / "b");
  std::filesystem::resize_file(dir / "b", page);
  if (!test::kernel_reads_ahead(a)) GTEST_SKIP() << "this kernel does not read ahead";
  const MappedFile moved = std::move(b);
  EXPECT_NO_THROW(read_ahead(a.bytes()));
  EXPECT_NO_THROW(read_ahead(moved.bytes().first(page)));
  EXPECT_NO_THROW(read_ahead(moved.bytes().subspan(3 * page, 0)));
  const std::string message =
      test::message_of(ErrorKind::kIo, [&] { read_ahead(moved.bytes().subspan(2 * page + 1, 1)); });
  EXPECT_THAT(message, testing::StartsWith((dir / "b").string() + " cannot be read"));
}

// Reads a byte of a file that was cut, and returns the exit code; standard error goes to `output`.
int code_of_a_read_of_a_cut_file(const std::filesystem::path& path,
                                 const std::filesystem::path& output) {
  return test::in_child([&] {
    ::dup2(open_file(output, O_WRONLY | O_CREAT).get(), STDERR_FILENO);
    end_on_unreadable_mapping("program");
    const MappedFile file(path);
    std::filesystem::resize_file(path, 1);
    const volatile std::byte* bytes = file.bytes().data();
    return std::to_integer<int>(bytes[file.bytes().size() - 1]);
  });
}

TEST(UnreadableMapping, EndsTheProcessWithTheNameOfTheFile) {
  const test::TempDir dir;
  write_file_atomic(dir / "a", std::string(1 << 20, 'x'));
  EXPECT_EQ(code_of_a_read_of_a_cut_file(dir / "a", dir / "output"), exit_code(ErrorKind::kIo));
  EXPECT_THAT(read_file(dir / "output", 10'000),
              testing::StartsWith("program: error (io): " + (dir / "a").string() +
                                  " cannot be read: the disk is damaged, or the file was cut"));
}

// The signal of another program is no error of a file.
TEST(UnreadableMapping, ASignalWithoutAnAccessHasItsUsualEffect) {
  EXPECT_EQ(test::in_child([] {
              end_on_unreadable_mapping("program");
              ::kill(::getpid(), SIGBUS);
              return 0;
            }),
            128 + SIGBUS);
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

// The kernel returns at most 2 GiB, and a network file system may return less.
TEST(File, ReadsOnAfterAShortRead) {
  const test::TempDir dir;
  std::string text(3000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  write_file_atomic(dir / "file", text);
  const UniqueFd fd = open_file(dir / "file", O_RDONLY);
  std::string back(2500, '?');
  most_bytes_of_a_read = 999;
  const size_t count =
      read_at(fd.get(), 100, std::as_writable_bytes(std::span(back)), dir / "file");
  most_bytes_of_a_read = SIZE_MAX;
  EXPECT_EQ(count, back.size());
  EXPECT_TRUE(back == text.substr(100, 2500));
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
