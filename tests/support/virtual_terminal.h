// A terminal without a screen: what a user would see of a program's bytes.
//
// It knows the controls that xffl sends (CR, LF, cursor home, erase line and below, colours,
// synchronized updates), wraps long lines, and rewraps them when the window changes, as terminals
// do. Another escape is an error.
#pragma once

#include <gtest/gtest.h>
#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/utf8.h"

namespace xffl::test {

class VirtualTerminal {
 public:
  VirtualTerminal(size_t rows, size_t columns) : rows_(rows), columns_(columns), screen_(rows) {}

  void receive(std::string_view bytes) {
    pending_ += bytes;
    size_t i = 0;
    while (i < pending_.size()) {
      const size_t length = control_or_character(i);
      if (length == 0) break;  // incomplete
      i += length;
    }
    pending_.erase(0, i);
  }

  // A new size. Lines that no longer fit continue in the next row; rows that no longer fit leave at
  // the top.
  void resize(size_t rows, size_t columns) {
    std::vector<Row> all;
    for (const Row& row : screen_)
      for (size_t at = 0; at == 0 || at < row.size(); at += columns)
        all.emplace_back(
            row.begin() + static_cast<std::ptrdiff_t>(at),
            row.begin() + static_cast<std::ptrdiff_t>(std::min(row.size(), at + columns)));
    while (all.size() > rows && all.back().empty()) all.pop_back();
    if (all.size() > rows) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(rows));
    all.resize(rows);
    screen_ = all;
    rows_ = rows;
    columns_ = columns;
    row_ = std::min(row_, rows - 1);
    column_ = 0;
  }

  // The rows of the screen without the empty rows at its end.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const Row& row : screen_) {
      std::string& line = lines.emplace_back();
      for (const std::string& cell : row) line += cell;
      line.resize(line.find_last_not_of(' ') + 1);
    }
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
  }
  bool shows(std::string_view text) const {
    const auto all = lines();
    return std::any_of(all.begin(), all.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }
  // The number of lines that went on in the next row, or reached the last column.
  size_t full_lines() const { return full_lines_; }
  size_t synchronized_updates() const { return updates_; }

 private:
  using Row = std::vector<std::string>;  // a wide character's second cell is empty

  size_t control_or_character(size_t i) {
    const char c = pending_[i];
    if (c == '\r') return column_ = 0, 1;
    if (c == '\n') return line_feed(), 1;
    if (c == '\033') return escape(i);
    const auto first = static_cast<unsigned char>(c);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (i + length > pending_.size()) return 0;
    EXPECT_EQ(utf8_length(pending_, i), length) << "invalid UTF-8";
    EXPECT_GE(first, 0x20) << "an unknown control";
    put(pending_.substr(i, length));
    return length;
  }

  size_t escape(size_t i) {
    const size_t end = pending_.find_first_of("ABCDHJKmhl", i);
    if (end == std::string::npos) return 0;
    const std::string sequence = pending_.substr(i + 1, end - i);
    if (sequence == "[H") {
      row_ = column_ = 0;
    } else if (sequence == "[K") {
      screen_[row_].resize(std::min(column_, screen_[row_].size()));
    } else if (sequence == "[J") {
      screen_[row_].resize(std::min(column_, screen_[row_].size()));
      for (size_t row = row_ + 1; row < rows_; ++row) screen_[row].clear();
    } else if (sequence == "[?2026h") {
      EXPECT_FALSE(in_update_);
      in_update_ = true;
    } else if (sequence == "[?2026l") {
      EXPECT_TRUE(in_update_);
      in_update_ = false;
      ++updates_;
    } else {
      EXPECT_EQ(sequence.back(), 'm') << "unknown escape " << sequence;
    }
    return end - i + 1;
  }

  void line_feed() {
    if (++row_ < rows_) return;
    row_ = rows_ - 1;
    screen_.erase(screen_.begin());
    screen_.emplace_back();
  }

  void put(const std::string& character) {
    const size_t width = width_of(character);
    if (width == 0) {
      if (column_ > 0) screen_[row_][column_ - 1] += character;
      return;
    }
    if (column_ + width > columns_) {
      column_ = 0;
      line_feed();
    }
    Row& row = screen_[row_];
    if (row.size() < column_ + width) row.resize(column_ + width, " ");
    row[column_] = character;
    if (width == 2) row[column_ + 1] = "";
    column_ += width;
    if (column_ == columns_) ++full_lines_;
  }

  // By the C library; a character without a width there has one column.
  static size_t width_of(const std::string& character) {
    static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 == nullptr) return 1;
    const locale_t before = ::uselocale(utf8);
    wchar_t code = 0;
    mbstate_t state{};
    const size_t length = ::mbrtowc(&code, character.data(), character.size(), &state);
    const int width = length <= character.size() ? ::wcwidth(code) : 1;
    ::uselocale(before);
    return width < 0 ? 1 : static_cast<size_t>(width);
  }

  size_t rows_, columns_;
  std::vector<Row> screen_;
  size_t row_ = 0, column_ = 0, full_lines_ = 0, updates_ = 0;
  bool in_update_ = false;
  std::string pending_;
};

}  // namespace xffl::test
