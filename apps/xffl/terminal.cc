#include "terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

UniqueFd open_terminal() { return UniqueFd(::open("/dev/tty", O_RDWR | O_CLOEXEC)); }

// Switches off the terminal's echo during its lifetime.
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

void await_line(int fd, std::chrono::seconds patience, const std::stop_token& stop) {
  const auto ends = std::chrono::steady_clock::now() + patience;
  for (pollfd wait{fd, POLLIN, 0}; ::poll(&wait, 1, 100) <= 0;) {
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    if (patience.count() > 0 && std::chrono::steady_clock::now() > ends)
      throw Error(ErrorKind::kAuth, "no answer within " + std::to_string(patience.count()) +
                                        " s: run `xffl login` for this facility");
  }
}

std::string read_line(int fd, std::chrono::seconds patience, const std::stop_token& stop) {
  await_line(fd, patience, stop);  // a terminal delivers whole lines
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

bool is_interactive() {
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0 && has_terminal();
}

std::string ask_on_terminal(const std::string& prompt, bool echo, std::chrono::seconds patience,
                            std::stop_token stop) {
  const UniqueFd terminal = open_terminal();
  if (!terminal)
    throw Error(ErrorKind::kUsage, "no terminal for the question '" + log::printable(prompt, 200) +
                                       "': run this command on a terminal");
  // The kernel stops a background process that reads its terminal, with all threads.
  if (::tcgetpgrp(terminal.get()) != ::getpgrp())
    throw Error(ErrorKind::kAuth, "cannot ask '" + log::printable(prompt, 200) +
                                      "': this process is in the background of its terminal");
  // NoEcho starts before the prompt, so that the terminal neither echoes nor discards early input.
  const log::NoLiveLine no_live_line;
  std::optional<NoEcho> silence;
  if (!echo) silence.emplace(terminal.get());
  write_all(terminal.get(), std::as_bytes(std::span(prompt)), "/dev/tty");
  return read_line(terminal.get(), patience, stop);
}

void require_yes(const std::string& question, const std::string& command,
                 const std::string& refused) {
  if (::isatty(STDIN_FILENO) == 0) return;
  std::string answer;
  try {
    answer = ask_on_terminal(question, true);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage,
                std::string(error.what()) + "; `" + command + "` asks no question");
  }
  if (answer != "yes") throw Error(ErrorKind::kCancelled, refused + ": the answer was not 'yes'");
}

remote::Ask login_prompt(std::stop_token stop, std::chrono::seconds patience) {
  if (!is_interactive()) return {};
  return [stop, patience](const std::string& prompt, bool echo) {
    try {
      return ask_on_terminal("\r\033[K" + log::printable(prompt, 1000), echo, patience, stop);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
      // The run outlives its terminal.
      throw Error(ErrorKind::kAuth, std::string(error.what()) + ", or `xffl login` there");
    }
  };
}

}  // namespace xffl
