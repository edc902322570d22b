// One line at the bottom of a terminal that changes in place while log lines go by above it.
#pragma once

#include <cstddef>
#include <string>

namespace xffl::log {

/// Shows `text` on stderr, cut to the terminal's width, instead of the one before; empty: none.
/// What is logged later comes above it. Nothing is shown where stderr is no terminal. Thread-safe.
void set_live_line(const std::string& text);

/// Columns that a live line may have now; 0 where stderr is no terminal.
size_t live_line_width();

/// While one lives the live line is not shown: a person is asked something there.
class NoLiveLine {
 public:
  NoLiveLine();
  NoLiveLine(const NoLiveLine&) = delete;
  ~NoLiveLine();
};

}  // namespace xffl::log
