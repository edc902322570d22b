// A status line at the bottom of a terminal, updated in place while log lines scroll above it.
#pragma once

#include <cstddef>
#include <string>

namespace xffl::log {

/// Replaces the live line on stderr by `text`, cut to the terminal's width; an empty `text` removes
/// the line. Later log lines appear above it. No effect unless stderr is a terminal. Thread-safe.
void set_live_line(const std::string& text);

/// The number of columns for a live line; 0 unless stderr is a terminal.
size_t live_line_width();

/// Hides the live line during its lifetime, for a prompt to the user.
class NoLiveLine {
 public:
  NoLiveLine();
  NoLiveLine(const NoLiveLine&) = delete;
  ~NoLiveLine();
};

}  // namespace xffl::log
