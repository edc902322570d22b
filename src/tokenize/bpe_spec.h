// What a tokenizer.json with a BPE model asks for: read, checked, and nothing guessed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "bpe_merges.h"

namespace xffl::tokenize {

/// What is put before a text whose spaces become U+2581.
enum class Prefix {
  kNone,
  kEach,     // before every text between added tokens
  kMissing,  // the same, unless it begins with one
  kFirst,    // the same, at the very beginning only
};

struct BpeSpec {
  std::string origin;  // the file's name, for messages
  // Symbols are characters, those that are no token their bytes "<0x0A>", and spaces are U+2581
  // (Llama 2); else they are bytes (Llama 3).
  bool byte_fallback = false;
  Prefix prefix = Prefix::kNone;  // with byte_fallback
  bool strips_space = false;      // with byte_fallback: decoding leaves out one space at the begin
  // Tokens of the model and their ids, all different; without byte_fallback spelled in the alphabet
  // of byte_level.h.
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<Merge> merges;
  bool ignore_merges = false;  // a word that is a token is not taken apart
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> split_patterns;  // one after the other
  bool add_prefix_space = false;
  int32_t bos_id = -1;  // what the file puts before a text, and behind it
  int32_t eos_id = -1;
};

/// `text` is the file `origin`. Throws kCorrupt for what breaks the format, kUnsupported for what
/// this program does not do exactly as HF's tokenizers, by name and with the way out.
BpeSpec read_bpe_spec(std::string_view text, const std::string& origin);

/// Fills `eos_id`, and `bos_id` where texts begin with it, from the tokenizer_config.json beside
/// `tokenizer_json`, where they are missing and it names them.
void read_tokenizer_config(const std::filesystem::path& tokenizer_json, BpeSpec& spec);

}  // namespace xffl::tokenize
