#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>

#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

constexpr char kOnTerminal[] = "XFFL_TEST_ON_TERMINAL";

// Runs the current test again in a child whose stderr is a terminal with `columns` columns, with
// kOnTerminal in its environment. Returns the bytes that the terminal received, with times of day
// as "TIME". A new process, since the logger looks at stderr once.
std::string run_on_terminal(unsigned short columns, const char* no_color,
                            const char* kind = "xterm") {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  const winsize size{24, columns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("NO_COLOR", no_color, 1);
    ::setenv("TERM", kind, 1);
    ::unsetenv("COLUMNS");
    ::unsetenv("CLICOLOR_FORCE");
    ::unsetenv("GTEST_OUTPUT");
    ::setenv(kOnTerminal, "1", 1);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execl("/proc/self/exe", "live_line", filter.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  const UniqueFd reader(terminal);
  std::string received;
  char bytes[512];
  for (ssize_t n = 0; (n = ::read(reader.get(), bytes, sizeof bytes)) > 0;)
    received.append(bytes, static_cast<size_t>(n));
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << received;
  return std::regex_replace(received, std::regex("[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"), "TIME");
}

void write_messages() {
  log::set_console_level(log::Level::kDebug);
  EXPECT_EQ(log::live_line_width(), 9u);
  log::debug("before");
  log::set_live_line("round \u00e9 3 of 9");
  log::info("job submitted", {{"job", 7}});
  log::set_live_line("round \u00e9 3 of 10");  // the visible part is the same
  {
    const log::NoLiveLine first;
    log::warning("question");
    const log::NoLiveLine second;
    log::set_live_line("new");
  }
  log::error("failed {}");
  log::set_live_line("");
  log::set_console_level(log::Level::kOff);
  log::error("not shown");
}

TEST(LiveLine, StaysBelowMessagesAndIsHiddenDuringAQuestion) {
  if (std::getenv(kOnTerminal) != nullptr) return write_messages();
  EXPECT_EQ(run_on_terminal(10, "1"),
            "TIME debug before\r\n"
            "\r\033[Kround \u00e9 3"
            "\r\033[KTIME info job submitted  job=7\r\nround \u00e9 3"
            "\r\033[KTIME warning question\r\n"
            "\r\033[Knew"
            "\r\033[KTIME error failed {}\r\nnew"
            "\r\033[K");
}

TEST(LiveLine, LogLevelsAreColouredUnlessNoColorIsSet) {
  if (std::getenv(kOnTerminal) != nullptr) return write_messages();
  const std::string text = run_on_terminal(10, "");
  for (const char* level : {"\033[36mdebug\033[m before", "\033[32minfo\033[m job submitted",
                            "\033[33m\033[1mwarning\033[m question", "\033[31m\033[1merror\033[m"})
    EXPECT_NE(text.find(level), std::string::npos) << level << "\n" << text;
}

TEST(LiveLine, ADumbTerminalGetsMessagesOnly) {
  if (std::getenv(kOnTerminal) != nullptr) {
    EXPECT_EQ(log::live_line_width(), 0u);
    log::set_live_line("round 3 of 9");
    return log::info("job submitted");
  }
  EXPECT_EQ(run_on_terminal(10, "", "dumb"), "TIME info job submitted\r\n");
}

TEST(LiveLine, IsCutByItsWidthOnTheTerminal) {
  if (std::getenv(kOnTerminal) != nullptr) {
    log::set_live_line("\u6771\u4eac\u6771\u4eac\u6771\u4eac");
    return log::set_live_line("");
  }
  EXPECT_EQ(run_on_terminal(10, ""),
            "\r\033[K\u6771\u4eac\u6771\u4eac"
            "\r\033[K");
}

TEST(LiveLine, HasNoWidthAndNoOutputWithoutATerminal) {
  if (::isatty(STDERR_FILENO) == 1) GTEST_SKIP() << "stderr is a terminal";
  EXPECT_EQ(log::live_line_width(), 0u);
  testing::internal::CaptureStderr();
  log::set_live_line("text");
  log::set_live_line("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace xffl
