// Questions on a terminal that nobody answers.
#include "terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

// Asks on a new terminal, where nobody answers; returns the exit code of the error, -1 without one.
int unanswered(const std::function<void()>& ask) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::alarm(20);
    try {
      ask();
    } catch (const Error& error) {
      ::_exit(exit_code(error.kind()));
    }
    ::_exit(0);
  }
  const UniqueFd held(terminal);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the question waits";
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AskOnTerminal, GivesUpAfterItsPatience) {
  EXPECT_EQ(unanswered([] { ask_on_terminal("Code: ", true, std::chrono::seconds(1)); }),
            exit_code(ErrorKind::kAuth));
}

// A terminal that is closed is no outage of the facility: the run says that it needs the user.
TEST(AskOnTerminal, ALogInWithoutItsTerminalIsAnUnansweredOne) {
  EXPECT_EQ(unanswered([] {
              const remote::Ask ask = login_prompt();
              ::signal(SIGHUP, SIG_IGN);
              ::ioctl(STDIN_FILENO, TIOCNOTTY);
              ask("Code: ", true);
            }),
            exit_code(ErrorKind::kAuth));
}

// A run that waits longer holds a connection that the server has closed.
TEST(AskOnTerminal, ALogInGivesUpBeforeTheServerDoes) {
  EXPECT_EQ(unanswered([] { login_prompt({}, std::chrono::seconds(1))("Code: ", true); }),
            exit_code(ErrorKind::kAuth));
  EXPECT_LT(kLoginPatience, std::chrono::seconds(120));
  EXPECT_GE(kLoginPatience, std::chrono::seconds(60)) << "a code must come from a phone";
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
