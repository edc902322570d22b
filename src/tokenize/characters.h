// Characters of UTF-8 text, and the spelling of bytes in vocabularies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {

/// U+2581, SentencePiece's spelling of a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Returns the character at `at` and moves `at` behind the character. `text` is valid UTF-8 and
/// does not end at `at`.
uint32_t next_code_point(std::string_view text, size_t& at);

/// Returns the character before `at` and moves `at` to the start of the character; `at` > 0.
uint32_t previous_code_point(std::string_view text, size_t& at);

void append_utf8(uint32_t code_point, std::string& text);

/// True for Unicode's White_Space.
bool is_white_space(uint32_t code_point);

/// Replaces invalid UTF-8 in `bytes` by U+FFFD: one for each maximal subpart of a character
/// (Unicode 16, section 3.9), as Rust's from_utf8_lossy.
std::string to_valid_utf8(std::string_view bytes);

/// Byte-level BPE spells each byte by a printable character that GPT-2 chose. Returns the
/// characters of the bytes 0 to 255, in UTF-8.
std::array<std::string, 256> byte_level_alphabet();
/// The bytes that `token` spells; empty when a character of `token` is not in the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

/// The token of a byte in BPE with byte fallback: "<0x0A>".
std::string byte_fallback_token(unsigned char byte);
/// The byte of a byte_fallback_token(), or -1 for any other token.
int byte_of_fallback_token(std::string_view token);

}  // namespace xffl::tokenize
