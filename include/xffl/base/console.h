// Properties of the terminal behind a file descriptor, and the user's wishes about colours.
#pragma once

#include <cstddef>

namespace xffl {

enum class Colours { kAuto, kAlways, kNever };

/// Whether `fd` is a terminal that moves its cursor: every terminal but TERM=dumb.
bool is_cursor_terminal(int fd);

/// Whether text for `fd` has colours. kAuto: NO_COLOR (not empty) forbids colours, CLICOLOR_FORCE
/// (neither empty nor "0") demands them, else a terminal has them that moves its cursor.
///
/// Source: no-color.org; bixense.com/clicolors.
bool has_colours(int fd, Colours wish = Colours::kAuto);

struct WindowSize {
  size_t rows = 24, columns = 80;
};
/// The size of the terminal `fd`: 24 x 80 if the terminal does not tell it, boundless if `fd` is no
/// terminal. COLUMNS, if a number, narrows the window and never widens it: an exported COLUMNS
/// keeps its value when the window changes.
WindowSize window_size(int fd);

}  // namespace xffl
