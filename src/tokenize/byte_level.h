// How bytes are spelled: in byte-level BPE each is a printable character, as GPT-2 chose them; with
// byte fallback a token "<0x0A>".
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace xffl::tokenize {

/// The pattern by which GPT-2, and a ByteLevel pre-tokenizer with `use_regex`, cuts a text.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The characters of the bytes 0 to 255, in UTF-8.
std::array<std::string, 256> byte_level_alphabet();

/// The bytes that `token` spells; nothing when it has a character that is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

/// "<0x0A>".
std::string byte_fallback_token(unsigned char byte);
/// The byte of such a token, or -1.
int byte_of_fallback_token(std::string_view token);

}  // namespace xffl::tokenize
