// Character boundaries in UTF-8, and lower case without a locale.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace xffl {

/// The number of bytes of the UTF-8 character at index `i` of `text`; 0 unless the bytes at `i` are
/// a valid character (RFC 3629). A stray or missing byte, an overlong form, a surrogate or a code
/// point beyond U+10FFFF is invalid.
constexpr size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  const unsigned char second = byte(i + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

/// Changes A-Z only, in any locale.
inline std::string ascii_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace xffl
