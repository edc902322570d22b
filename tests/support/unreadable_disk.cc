// A library for LD_PRELOAD: a disk with a bad sector. Reads of the file that has the further name
// (hard link) XFFL_UNREADABLE fail with EIO; a file that replaces this one can be read.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

bool is_unreadable(int fd) {
  const int before = errno;
  const char* name = std::getenv("XFFL_UNREADABLE");
  struct stat bad {
  }, file{};
  const bool same = name != nullptr && ::stat(name, &bad) == 0 && ::fstat(fd, &file) == 0 &&
                    bad.st_dev == file.st_dev && bad.st_ino == file.st_ino;
  errno = same ? EIO : before;
  return same;
}

}  // namespace

extern "C" ssize_t read(int fd, void* to, size_t size) {
  return is_unreadable(fd) ? -1 : ::syscall(SYS_read, fd, to, size);
}

extern "C" ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  return is_unreadable(fd) ? -1 : ::syscall(SYS_pread64, fd, to, size, offset);
}

extern "C" ssize_t pread64(int fd, void* to, size_t size, off64_t offset) {
  return is_unreadable(fd) ? -1 : ::syscall(SYS_pread64, fd, to, size, offset);
}
