// A library for LD_PRELOAD that records the guaranteed state of a disk after a power loss: a file's
// content at its last fsync or fdatasync, a folder's names at the folder's last fsync. Nothing else
// below XFFL_LOSSY_ROOT survives. The records are in the folder XFFL_LOSSY_NOTES;
// tests/support/lossy_disk.h reads them.
//
// An identity is inode and birth time, since inodes are reused. "file-<identity>" is a file's
// content; "names-<identity>" has a line per name of a folder: kind (f, d, l), identity, name, and
// the target of a link in the next line.
#include "support/lossy_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

namespace {

namespace fs = std::filesystem;

// Uses no function that calls fsync, which would recurse into this library.
void note(const std::string& name, const fs::path& content) {
  const fs::path notes = std::getenv("XFFL_LOSSY_NOTES");
  const fs::path temp = notes / ("tmp-" + std::to_string(::syscall(SYS_gettid)));
  fs::copy_file(content, temp, fs::copy_options::overwrite_existing);
  fs::rename(temp, notes / name);
}

void note_names(const std::string& identity, const fs::path& folder) {
  const fs::path notes = std::getenv("XFFL_LOSSY_NOTES");
  const fs::path temp = notes / ("tmp-" + std::to_string(::syscall(SYS_gettid)));
  {
    std::ofstream out(temp);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (entry.is_socket()) continue;
      const char kind = entry.is_symlink() ? 'l' : entry.is_directory() ? 'd' : 'f';
      const std::string child = xffl::test::disk_identity(AT_FDCWD, path.c_str());
      if (child.empty()) continue;  // removed meanwhile
      out << kind << ' ' << child << ' ' << path.filename().string() << '\n';
      if (kind == 'l') out << fs::read_symlink(path).string() << '\n';
    }
  }
  fs::rename(temp, notes / ("names-" + identity));
}

int record_sync(int fd) {
  static std::mutex mutex;  // otherwise an older list of names could replace a newer list
  const std::lock_guard lock(mutex);
  const char* root = std::getenv("XFFL_LOSSY_ROOT");
  std::error_code none;
  const fs::path path = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
  if (root == nullptr || !path.string().starts_with(root)) return 0;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return -1;
  const std::string identity = xffl::test::disk_identity(fd, "");
  if (S_ISDIR(info.st_mode))
    note_names(identity, path);
  else
    note("file-" + identity, "/proc/self/fd/" + std::to_string(fd));
  return 0;
}

}  // namespace

// No real fsync: the test's machine keeps its power.
extern "C" int fsync(int fd) { return record_sync(fd); }
extern "C" int fdatasync(int fd) { return record_sync(fd); }
