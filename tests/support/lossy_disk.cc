// Preloaded into a program (LD_PRELOAD), notes what a disk is sure to have after a power loss: the
// content of a file as of its last fsync or fdatasync, the names in a folder as of the folder's
// last fsync. Nothing else of what lies below XFFL_LOSSY_ROOT survives. The notes are in the folder
// XFFL_LOSSY_NOTES; tests/support/lossy_disk.h reads them.
//
// Identities are inode and birth, since inodes are used again: "file-<identity>" is a file's
// content, "names-<identity>" a folder's names, a line each: kind (f, d, l), identity, name, and a
// link's target in the next line.
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

// Not noted as a program would note its own files: what is called here must not come back here.
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
      if (child.empty()) continue;  // it went away meanwhile
      out << kind << ' ' << child << ' ' << path.filename().string() << '\n';
      if (kind == 'l') out << fs::read_symlink(path).string() << '\n';
    }
  }
  fs::rename(temp, notes / ("names-" + identity));
}

int survive(int fd) {
  static std::mutex one_after_another;  // else an older list of names could replace a newer one
  const std::lock_guard lock(one_after_another);
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

// The disk itself need not be waited for: the test's machine keeps its power.
extern "C" int fsync(int fd) { return survive(fd); }
extern "C" int fdatasync(int fd) { return survive(fd); }
