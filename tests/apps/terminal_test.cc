// Questions on a terminal that nobody answers.
#include "terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

TEST(AskOnTerminal, GivesUpAfterItsPatience) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::alarm(20);
    try {
      ask_on_terminal("Code: ", true, std::chrono::seconds(1));
    } catch (const Error& error) {
      ::_exit(exit_code(error.kind()));
    }
    ::_exit(0);
  }
  const UniqueFd held(terminal);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the question waits";
  EXPECT_EQ(WEXITSTATUS(status), exit_code(ErrorKind::kAuth));
}

TEST(AskOnTerminal, TheTerminalEchoesAgainAfterASecret) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::alarm(20);
    termios after{};
    const bool is_read =
        ask_on_terminal("Password: ", false) == "secret" && ::tcgetattr(STDIN_FILENO, &after) == 0;
    ::_exit(is_read && (after.c_lflag & ECHO) != 0 ? 7 : 8);
  }
  const UniqueFd held(terminal);
  std::string shown;
  for (char c = 0; !shown.ends_with("Password: ") && ::read(terminal, &c, 1) == 1;) shown += c;
  EXPECT_EQ(::write(terminal, "secret\n", 7), 7) << shown;
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the question waits";
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace xffl
