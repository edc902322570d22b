#include <cstdint>
#include <string_view>

#include "code_points.h"

namespace xffl::tokenize {
namespace {

struct Form {
  size_t length;          // bytes of the character; 0: no character begins so
  unsigned char lowest;   // of its second byte: refuses overlong forms
  unsigned char highest;  // of its second byte: refuses surrogates and what is above U+10FFFF
};

// RFC 3629, section 4.
Form form_of(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first >= 0xc2 && first <= 0xdf) return {2, 0x80, 0xbf};
  if (first == 0xe0) return {3, 0xa0, 0xbf};
  if (first == 0xed) return {3, 0x80, 0x9f};
  if (first >= 0xe1 && first <= 0xef) return {3, 0x80, 0xbf};
  if (first == 0xf0) return {4, 0x90, 0xbf};
  if (first >= 0xf1 && first <= 0xf3) return {4, 0x80, 0xbf};
  if (first == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// Bytes of `text` from `at` that belong to one character: all of `form.length` when it is whole.
size_t valid_prefix(std::string_view text, size_t at, const Form& form) {
  size_t length = 1;
  for (; length < form.length && at + length < text.size(); ++length) {
    const auto byte = static_cast<unsigned char>(text[at + length]);
    const unsigned char lowest = length == 1 ? form.lowest : 0x80;
    const unsigned char highest = length == 1 ? form.highest : 0xbf;
    if (byte < lowest || byte > highest) break;
  }
  return length;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const Form form = form_of(first);
    if (form.length == 0 || valid_prefix(text, at, form) != form.length) return at;
    at += form.length;
  }
  return text.size();
}

uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t first = byte(at);
  if (first < 0x80) {
    ++at;
    return first;
  }
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  uint32_t code_point = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (byte(at + i) & 0x3fu);
  at += length;
  return code_point;
}

uint32_t previous_code_point(std::string_view text, size_t& at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u);
  size_t copy = at;
  return next_code_point(text, copy);
}

void append_utf8(uint32_t code_point, std::string& text) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    add(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  } else {
    add(0xf0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3f));
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t valid = find_invalid_utf8(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Form form = form_of(static_cast<unsigned char>(bytes[0]));
    bytes.remove_prefix(form.length == 0 ? 1 : valid_prefix(bytes, 0, form));
    append_utf8(0xfffd, text);
  }
  return text;
}

}  // namespace xffl::tokenize
