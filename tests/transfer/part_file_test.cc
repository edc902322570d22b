#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <filesystem>

#include "local_files.h"
#include "support/failing_call.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"

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

TEST(PartFile, IsRenamedAfterFsync) {
  const test::TempDir dir;
  PartFile part(dir / ".f.part", 10);
  part.write(0, std::as_bytes(std::span(std::string_view("0123456789"))));
  part.finish(dir / "f");
  EXPECT_EQ(fs::file_size(dir / "f"), 10u);
  EXPECT_EQ(PartFile(dir / "f", 4).size_at_opening(), 4u) << "a longer file is truncated";
}

}  // namespace
}  // namespace xffl::transfer
