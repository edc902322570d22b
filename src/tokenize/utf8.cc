#include <cstdint>
#include <string_view>

#include "xffl/tokenize/documents.h"

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

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t at = 0;
  while (at < text.size()) {
    const Form form = form_of(byte(at));
    if (form.length == 0 || form.length > text.size() - at) return at;
    for (size_t i = 1; i < form.length; ++i) {
      const unsigned char lowest = i == 1 ? form.lowest : 0x80;
      const unsigned char highest = i == 1 ? form.highest : 0xbf;
      if (byte(at + i) < lowest || byte(at + i) > highest) return at;
    }
    at += form.length;
  }
  return text.size();
}

}  // namespace xffl::tokenize
