// The columns that text takes on a terminal.
//
// Unicode's East_Asian_Width (UAX #11): a wide character takes two columns, a combining mark or a
// format character none. Terminals differ about sequences of emoji: the functions count the columns
// of the terminal that takes the most, so that a text never takes more columns than they say.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace xffl {

/// The columns of `text`, UTF-8 without control characters (log::printable()). A byte that is no
/// valid character counts as one column.
size_t display_width(std::string_view text);

/// The longest beginning of `text` that takes at most `columns` columns. It ends after a whole
/// character with its combining marks.
std::string_view cut_to_width(std::string_view text, size_t columns);

/// `text` in exactly `columns` columns: cut at its end, or filled with spaces.
std::string fill_to_width(std::string_view text, size_t columns);

}  // namespace xffl
