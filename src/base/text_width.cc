#include "xffl/base/text_width.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "width_tables.h"
#include "xffl/base/utf8.h"

namespace xffl {
namespace {

constexpr uint32_t kEmojiStyle = 0xfe0f;  // variation selector 16: the character before it as emoji
constexpr size_t kWidest = 2;

bool is_in(std::span<const CodePoints> ranges, uint32_t code) {
  const auto range = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](uint32_t value, const CodePoints& candidate) { return value < candidate.first; });
  return range != ranges.begin() && code <= std::prev(range)->last;
}

uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t k) {
    return static_cast<uint32_t>(static_cast<unsigned char>(character[k]));
  };
  switch (character.size()) {
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 |
             (byte(3) & 0x3f);
    default:
      return byte(0);
  }
}

struct FittingPrefix {
  size_t bytes = 0;
  size_t columns = 0;
};

// The longest beginning of `text` within `columns` columns.
FittingPrefix longest_prefix(std::string_view text, size_t columns) {
  FittingPrefix prefix;
  size_t previous = 0;      // the columns of the character before this one
  size_t base = 0;          // the byte where that character begins
  size_t base_columns = 0;  // the columns ahead of it
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const std::string_view character = text.substr(i, std::max<size_t>(1, length));
    const uint32_t code = length == 0 ? '?' : code_point(character);
    const bool joins = code == kEmojiStyle || is_in(kZeroWidth, code);
    const size_t width = code == kEmojiStyle  ? kWidest - std::clamp(previous, size_t{1}, kWidest)
                         : joins              ? 0
                         : is_in(kWide, code) ? kWidest
                                              : 1;
    if (prefix.columns + width > columns) {
      // A character that its variation selector makes too wide goes as a whole.
      return joins ? FittingPrefix{base, base_columns} : prefix;
    }
    if (!joins) {
      base = i;
      base_columns = prefix.columns;
      previous = width;
    } else {
      previous += width;
    }
    prefix = {i + character.size(), prefix.columns + width};
    i += character.size();
  }
  return prefix;
}

}  // namespace

size_t display_width(std::string_view text) {
  return longest_prefix(text, static_cast<size_t>(-1) / 2).columns;
}

std::string_view cut_to_width(std::string_view text, size_t columns) {
  return text.substr(0, longest_prefix(text, columns).bytes);
}

std::string fill_to_width(std::string_view text, size_t columns) {
  const FittingPrefix prefix = longest_prefix(text, columns);
  return std::string(text.substr(0, prefix.bytes)) + std::string(columns - prefix.columns, ' ');
}

}  // namespace xffl
