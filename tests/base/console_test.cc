#include "xffl/base/console.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>

#include "xffl/base/file.h"

namespace xffl {
namespace {

class Console : public testing::Test {
 protected:
  Console() {
    for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"}) ::unsetenv(name);
    ::setenv("TERM", "xterm", 1);
    int terminal = -1, other = -1, pipe_ends[2] = {-1, -1};
    const winsize size{10, 40, 0, 0};
    EXPECT_EQ(::openpty(&terminal, &other, nullptr, nullptr, &size), 0);
    EXPECT_EQ(::pipe(pipe_ends), 0);
    terminal_ = UniqueFd(terminal);
    other_ = UniqueFd(other);
    pipe_ = UniqueFd(pipe_ends[1]);
    ::close(pipe_ends[0]);
  }
  ~Console() override {
    for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"}) ::unsetenv(name);
  }

  UniqueFd terminal_, other_, pipe_;
};

TEST_F(Console, ADumbTerminalMovesNoCursor) {
  EXPECT_TRUE(is_cursor_terminal(other_.get()));
  EXPECT_FALSE(is_cursor_terminal(pipe_.get()));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(is_cursor_terminal(other_.get()));
  EXPECT_FALSE(has_colours(other_.get()));
}

TEST_F(Console, ColoursFollowTheUsersWish) {
  EXPECT_TRUE(has_colours(other_.get()));
  EXPECT_FALSE(has_colours(pipe_.get()));
  EXPECT_TRUE(has_colours(pipe_.get(), Colours::kAlways));
  EXPECT_FALSE(has_colours(other_.get(), Colours::kNever));
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(has_colours(other_.get())) << "an empty NO_COLOR has no effect";
  ::setenv("CLICOLOR_FORCE", "0", 1);
  EXPECT_FALSE(has_colours(pipe_.get()));
  ::setenv("CLICOLOR_FORCE", "1", 1);
  EXPECT_TRUE(has_colours(pipe_.get()));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(has_colours(other_.get())) << "NO_COLOR prevails";
  EXPECT_TRUE(has_colours(other_.get(), Colours::kAlways)) << "the option prevails";
}

TEST_F(Console, ColumnsNarrowsTheWindow) {
  EXPECT_EQ(window_size(other_.get()).rows, 10u);
  EXPECT_EQ(window_size(other_.get()).columns, 40u);
  ::setenv("COLUMNS", "30", 1);
  EXPECT_EQ(window_size(other_.get()).columns, 30u);
  EXPECT_EQ(window_size(pipe_.get()).columns, 30u);
  for (const char* other : {"400", "0", "-5", "12x", "", "99999999999999999999999"}) {
    ::setenv("COLUMNS", other, 1);
    EXPECT_EQ(window_size(other_.get()).columns, 40u) << other;
  }
  EXPECT_GT(window_size(pipe_.get()).columns, 10000u);
}

}  // namespace
}  // namespace xffl
