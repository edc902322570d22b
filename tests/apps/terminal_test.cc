// Questions on a terminal that nobody answers.
#include "terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
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

}  // namespace
}  // namespace xffl
