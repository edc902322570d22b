#include "terminal.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

UniqueFd open_terminal() { return UniqueFd(::open("/dev/tty", O_RDWR | O_CLOEXEC)); }

// What is typed is not shown while it lives.
class NoEcho {
 public:
  explicit NoEcho(int fd) : fd_(fd) {
    if (::tcgetattr(fd, &before_) != 0) return;
    termios silent = before_;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    changed_ = ::tcsetattr(fd, TCSAFLUSH, &silent) == 0;
  }
  NoEcho(const NoEcho&) = delete;
  ~NoEcho() {
    if (!changed_) return;
    ::tcsetattr(fd_, TCSAFLUSH, &before_);
    [[maybe_unused]] const ssize_t n = ::write(fd_, "\n", 1);
  }

 private:
  int fd_;
  termios before_{};
  bool changed_ = false;
};

std::string read_line(int fd) {
  std::string line;
  for (char c = 0; line.size() < 4096;) {
    const ssize_t n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(ErrorKind::kUsage, "the terminal was closed");
    if (c == '\n') break;
    line += c;
  }
  return line;
}

}  // namespace

bool has_terminal() { return static_cast<bool>(open_terminal()); }

std::string ask_on_terminal(const std::string& prompt, bool echo) {
  const UniqueFd terminal = open_terminal();
  if (!terminal)
    throw Error(ErrorKind::kUsage, "there is no terminal to ask '" + log::printable(prompt, 200) +
                                       "' on: run this command where a person types");
  write_all(terminal.get(), std::as_bytes(std::span(prompt)), "/dev/tty");
  if (echo) return read_line(terminal.get());
  const NoEcho silence(terminal.get());
  return read_line(terminal.get());
}

}  // namespace xffl
