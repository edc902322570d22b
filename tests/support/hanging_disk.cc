// A library for LD_PRELOAD: a disk that stops answering. fsync of a file whose path contains the
// text of XFFL_HANG_FOR never returns; before, it creates the file XFFL_HANG_NOTE.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

extern "C" int fsync(int fd) {
  const char* text = std::getenv("XFFL_HANG_FOR");
  const char* note = std::getenv("XFFL_HANG_NOTE");
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (text != nullptr && note != nullptr && ::readlink(link.c_str(), path, sizeof path - 1) > 0 &&
      std::strstr(path, text) != nullptr) {
    ::close(::open(note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (;;) ::pause();
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
