// A library for LD_PRELOAD that injects faults at paths that contain the text of a variable:
//   XFFL_FULL_FOR    mkdir fails with ENOSPC
//   XFFL_KILL_FOR    mkdir kills the process
//   XFFL_SIGNAL_FOR  the process gets SIGUSR1 before the first open
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

// To the process, as a batch system does: raise() would send it to this thread. Returns when the
// thread that waits for the signal has taken it.
void send_signal() {
  ::kill(::getpid(), SIGUSR1);
  sigset_t pending;
  do {
    ::usleep(100'000);
  } while (::sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1);
}

bool is_at(const char* path, const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' && std::strstr(path, text) != nullptr;
}

std::atomic<bool> signalled{false};

}  // namespace

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (is_at(path, "XFFL_FULL_FOR")) {
    errno = ENOSPC;
    return -1;
  }
  if (is_at(path, "XFFL_KILL_FOR")) std::raise(SIGKILL);
  return ::mkdirat(AT_FDCWD, path, mode);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (is_at(path, "XFFL_SIGNAL_FOR") && !signalled.exchange(true)) send_signal();
  return ::openat(AT_FDCWD, path, flags, mode);
}
