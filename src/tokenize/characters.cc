#include "characters.h"

#include <algorithm>
#include <charconv>

#include "xffl/base/utf8.h"

namespace xffl::tokenize {
namespace {

// The length of the maximal subpart of a character at the start of invalid `bytes`: the longest
// prefix that some continuation bytes complete to a character; at least 1. The first byte may limit
// the second byte from below or from above, hence the two completions.
size_t invalid_length(std::string_view bytes) {
  for (size_t length = std::min<size_t>(3, bytes.size()); length > 1; --length) {
    for (const char continuation : {'\x80', '\xbf'}) {
      const std::string completed =
          std::string(bytes.substr(0, length)) + std::string(3, continuation);
      if (utf8_length(completed, 0) > length) return length;
    }
  }
  return 1;
}

// A printable byte is its own character; the other bytes, in order, take the characters from 256
// on.
bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::array<uint32_t, 256> code_points() {
  std::array<uint32_t, 256> result{};
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    result[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return result;
}

constexpr uint32_t kAlphabetEnd = 256 + 68;

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
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
    bytes.remove_prefix(invalid_length(bytes));
    append_utf8(0xfffd, text);
  }
  return text;
}

std::array<std::string, 256> byte_level_alphabet() {
  std::array<std::string, 256> alphabet;
  const std::array<uint32_t, 256> characters = code_points();
  for (size_t byte = 0; byte < 256; ++byte) append_utf8(characters[byte], alphabet[byte]);
  return alphabet;
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  static const std::array<int, kAlphabetEnd> bytes = [] {
    std::array<int, kAlphabetEnd> result;
    result.fill(-1);
    const std::array<uint32_t, 256> characters = code_points();
    for (size_t byte = 0; byte < 256; ++byte) result[characters[byte]] = static_cast<int>(byte);
    return result;
  }();
  std::string result;
  for (size_t at = 0; at < token.size();) {
    const uint32_t character = next_code_point(token, at);
    if (character >= kAlphabetEnd || bytes[character] < 0) return std::nullopt;
    result += static_cast<char>(bytes[character]);
  }
  return result;
}

std::string byte_fallback_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

int byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? byte : -1;
}

}  // namespace xffl::tokenize
