// A command of xffl on a terminal of its own.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/virtual_terminal.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"

namespace xffl::test {

using Environment = std::map<std::string, std::string>;

// `xffl ARGUMENTS...`, or the program whose path is the first argument. Its stdin, stdout and
// stderr are a terminal.
class OnTerminal {
 public:
  OnTerminal(std::vector<std::string> arguments, unsigned short rows, unsigned short columns,
             const Environment& environment)
      : screen(rows, columns) {
    const winsize size{rows, columns, 0, 0};
    int terminal = -1;
    pid_ = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (pid_ == 0) {
      for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"}) ::unsetenv(name);
      ::setenv("TERM", "xterm", 1);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      if (!arguments.at(0).starts_with('/'))
        arguments.insert(arguments.begin(), XFFL_BINARY_DIR "/bin/xffl");
      ::execv(arguments[0].c_str(), exec_pointers(arguments).data());
      ::_exit(127);
    }
    terminal_ = UniqueFd(terminal);
  }
  ~OnTerminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  // Receives until `condition` holds; false when the program ends before, or after a minute.
  bool await(const std::function<bool()>& condition) {
    const auto ends = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition() && std::chrono::steady_clock::now() < ends) {
      pollfd wait{terminal_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 100) <= 0) continue;
      char block[4096];
      const ssize_t n = ::read(terminal_.get(), block, sizeof block);
      if (n <= 0) break;
      bytes.append(block, static_cast<size_t>(n));
      screen.receive({block, static_cast<size_t>(n)});
    }
    return condition();
  }
  bool await_text(const std::string& text) {
    return await([&] { return screen.shows(text); });
  }
  void resize(unsigned short rows, unsigned short columns) {
    const winsize size{rows, columns, 0, 0};
    screen.resize(rows, columns);
    EXPECT_EQ(::ioctl(terminal_.get(), TIOCSWINSZ, &size), 0);
  }
  void type(const std::string& text) const {
    write_all(terminal_.get(), std::as_bytes(std::span(text)), "the terminal");
  }
  // The exit code, or 128 + signal; a program that runs on for a minute is killed.
  int finish() {
    const auto begin = std::chrono::steady_clock::now();
    await([] { return false; });
    if (std::chrono::steady_clock::now() - begin >= std::chrono::minutes(1)) ::kill(pid_, SIGKILL);
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  test::VirtualTerminal screen;
  std::string bytes;

 private:
  pid_t pid_ = -1;
  UniqueFd terminal_;
};

}  // namespace xffl::test
