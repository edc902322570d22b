#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "folders.h"
#include "local_files.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"

namespace {

// The calls of this thread that make a file durable or rename it, in their order; null: no record.
thread_local std::vector<std::string>* calls = nullptr;

void record_sync(const std::string& call, int fd) {
  if (calls == nullptr) return;
  std::error_code none;
  calls->push_back(
      call + " " +
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none).string());
}

void record_rename(const char* from, const char* to) {
  if (calls != nullptr) calls->push_back(std::string("rename ") + from + " " + to);
}

}  // namespace

// In place of the C library's functions, for this whole program.
extern "C" int fsync(int fd) {
  record_sync("fsync", fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  record_sync("fdatasync", fd);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  record_rename(from, to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0u));
}

namespace xffl::transfer {
namespace {

namespace fs = std::filesystem;

constexpr int kNoFilters = 77;

// After a failed fsync the kernel may mark pages clean that never reached the disk. A part file
// that is verified from such pages would be lost at the next power failure.
TEST(PartFile, IsNotTrustedAfterAFailedSync) {
  const test::TempDir dir;
  const std::string bytes(100'000, 'x');
  const int outcome = test::in_child([&] {
    PartFile part(dir / ".f.part", bytes.size());
    part.write(0, std::as_bytes(std::span(bytes)));
    if (!test::fail_calls(SYS_fsync, EIO)) return kNoFilters;
    try {
      part.finish(dir / "f");
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kIo ? 0 : 1;
    }
    return 2;
  });
  if (outcome == kNoFilters) GTEST_SKIP() << "needs filters of system calls (seccomp)";
  EXPECT_EQ(outcome, 0);
  EXPECT_FALSE(fs::exists(dir / "f"));
  EXPECT_FALSE(fs::exists(dir / ".f.part")) << "the next call would continue it";
}

// After a loss of power at any moment the name has the whole file, or does not exist.
TEST(PartFile, IsRenamedAfterFsync) {
  const test::TempDir dir;
  const fs::path folder = fs::canonical(dir.path());
  PartFile part(folder / ".f.part", 10);
  part.write(0, std::as_bytes(std::span(std::string_view("0123456789"))));
  std::vector<std::string> recorded;
  calls = &recorded;
  part.finish(folder / "f");
  calls = nullptr;
  EXPECT_EQ(recorded, (std::vector<std::string>{
                          "fsync " + (folder / ".f.part").string(),
                          "rename " + (folder / ".f.part").string() + " " + (folder / "f").string(),
                          "fsync " + folder.string()}));
  EXPECT_EQ(fs::file_size(folder / "f"), 10u);
}

// The journal names the update right after the fetch.
TEST(FetchedFolder, HasADurableName) {
  const test::TempDir dir;
  const fs::path folder = fs::canonical(dir.path()), to = folder / "update";
  test::FakeSession facility;
  put_remote(facility, "/out", sample_files());
  const std::string root = manifest_of(sample_files()).root_sha256();
  std::vector<std::string> recorded;
  calls = &recorded;
  EXPECT_NO_THROW(fetch(facility, RemotePath("/out"), root, 1u << 30, to, {}));
  calls = nullptr;
  ASSERT_GE(recorded.size(), 2u);
  EXPECT_EQ(recorded[recorded.size() - 2], "rename " + to.string() + ".part " + to.string());
  EXPECT_EQ(recorded.back(), "fsync " + folder.string());
}

TEST(PartFile, IsTruncatedToItsLimit) {
  const test::TempDir dir;
  std::ofstream(dir / ".f.part") << "0123456789";
  EXPECT_EQ(PartFile(dir / ".f.part", 4).size_at_opening(), 4u);
  EXPECT_EQ(fs::file_size(dir / ".f.part"), 4u);
}

}  // namespace
}  // namespace xffl::transfer
