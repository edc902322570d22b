#include "xffl/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace xffl {
namespace {

constexpr size_t kBoundless = 1 << 20;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

// The columns that the user demands; 0: no demand.
size_t wanted_columns() {
  const std::string_view text = variable("COLUMNS");
  size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  return error == std::errc() && end == text.data() + text.size() ? columns : 0;
}

}  // namespace

bool is_cursor_terminal(int fd) { return ::isatty(fd) == 1 && variable("TERM") != "dumb"; }

bool has_colours(int fd, Colours wish) {
  if (wish != Colours::kAuto) return wish == Colours::kAlways;
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view force = variable("CLICOLOR_FORCE");
  return (!force.empty() && force != "0") || is_cursor_terminal(fd);
}

WindowSize window_size(int fd) {
  WindowSize size;
  winsize known{};
  if (::isatty(fd) != 1) size = {kBoundless, kBoundless};
  if (::ioctl(fd, TIOCGWINSZ, &known) == 0) {
    if (known.ws_row > 0) size.rows = known.ws_row;
    if (known.ws_col > 0) size.columns = known.ws_col;
  }
  if (const size_t wanted = wanted_columns(); wanted > 0)
    size.columns = std::min(size.columns, wanted);
  return size;
}

}  // namespace xffl
