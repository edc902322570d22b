// YAML's source text: places in it, quotes, and how a text is written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "yaml_reader.h"

namespace xffl::config {

/// Line and column of the byte at `offset`; a column counts characters.
Mark position(std::string_view text, size_t offset);

/// The same for offsets that mostly grow: the text is walked once.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}
  Mark advance(size_t offset);

 private:
  std::string_view text_;
  size_t offset_ = 0;
  Mark mark_{1, 1};
};

/// The closing quote of the text in quotes that starts at `start`; npos when there is none.
size_t end_of_quotes(std::string_view text, size_t start);

/// The first quote at or after `from` that is not in a comment; the text's size when there is none.
size_t next_quote(std::string_view text, size_t from);

/// The column of a tab in the blanks that line number `line` begins with; 0 when there is none.
int tab_in_indentation(std::string_view text, int line);

/// False, with a problem, when the text is too long, not UTF-8, or holds control characters.
bool check_text(std::string_view text, std::vector<Problem>& problems);

/// `text` as one YAML scalar that read_yaml gives back: as it is, or in double quotes.
std::string yaml_scalar(std::string_view text);

/// "[a, b]".
std::string yaml_flow_list(const std::vector<std::string>& items);

}  // namespace xffl::config
