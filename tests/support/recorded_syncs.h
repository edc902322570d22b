// Which files a test's thread has synced. This header replaces the C library's fsync() and
// fdatasync() in the whole test program, so only one source file of a program may include it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <map>

namespace xffl::test {

inline thread_local std::map<ino_t, off_t> synced_sizes;  // of files, by inode

/// Whether this thread synced the file with its present size, since synced_sizes was cleared.
inline testing::AssertionResult is_synced(const std::filesystem::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return testing::AssertionFailure() << file << " is missing";
  const auto synced = synced_sizes.find(info.st_ino);
  if (synced == synced_sizes.end()) return testing::AssertionFailure() << file << " is not synced";
  if (synced->second == info.st_size) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << file << " was synced with " << synced->second << " of " << info.st_size << " bytes";
}

inline int recorded_sync(long call, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) == 0) synced_sizes[info.st_ino] = info.st_size;
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace xffl::test

extern "C" int fsync(int fd) { return xffl::test::recorded_sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return xffl::test::recorded_sync(SYS_fdatasync, fd); }
