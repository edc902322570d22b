// Characters of valid UTF-8 text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {

/// U+2581, by which SentencePiece spells a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// The character at `at`, which moves behind it. `text` is valid UTF-8 and does not end at `at`.
uint32_t next_code_point(std::string_view text, size_t& at);

/// The character before `at`, which moves to its begin; `at` > 0.
uint32_t previous_code_point(std::string_view text, size_t& at);

void append_utf8(uint32_t code_point, std::string& text);

/// Unicode's White_Space.
bool is_white_space(uint32_t code_point);

/// `bytes` with U+FFFD for what is not UTF-8: one for each maximal part of a character (Unicode 16,
/// section 3.9), as Rust's from_utf8_lossy.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace xffl::tokenize
