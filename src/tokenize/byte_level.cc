#include "byte_level.h"

#include <charconv>
#include <cstdint>

#include "code_points.h"

namespace xffl::tokenize {
namespace {

// Printable ones stand for themselves; the others, in order, for the characters from 256 on.
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
