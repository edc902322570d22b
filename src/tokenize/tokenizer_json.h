// Reads a tokenizer.json with a BPE model. The reader checks every setting; an unknown setting is
// an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"

namespace xffl::tokenize {

inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;

/// The neighbours `left` and `right` become `merged`.
struct Merge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t merged = 0;
};

/// The texts that get a space mark (U+2581) in front.
enum class Prefix {
  kNone,
  kEach,     // every text between added tokens
  kMissing,  // as kEach, unless the text begins with a mark
  kFirst,    // as kMissing, only at the start of the whole text
};

struct BpeSpec {
  std::string origin;  // the file's name, for messages
  // True: symbols are characters and spaces are U+2581, as in Llama 2; a character without a token
  // becomes byte tokens ("<0x0A>"). False: symbols are bytes, as in Llama 3.
  bool byte_fallback = false;
  Prefix prefix = Prefix::kNone;  // with byte_fallback
  bool strips_space = false;      // with byte_fallback: decoding drops one leading space
  // The model's tokens and their ids, all different; without byte_fallback spelled in
  // byte_level_alphabet(), and a byte may have no token.
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<Merge> merges;   // in order of rank
  bool ignore_merges = false;  // a word that is a token stays whole
  std::vector<AddedToken> added_tokens;
  bool nfc = false;                         // without byte_fallback: texts become NFC first
  std::vector<std::string> split_patterns;  // applied in this order
  bool add_prefix_space = false;
  int32_t bos_id = -1;  // the tokens before and after a text
  int32_t eos_id = -1;
};

/// Reads `text`, the content of the file `origin`. Throws kCorrupt for an invalid file;
/// kUnsupported for a setting that xffl does not implement exactly as HF's tokenizers, with its
/// name and an alternative.
BpeSpec read_tokenizer_json(std::string_view text, const std::string& origin);

/// Sets a missing `eos_id`, and a missing `bos_id` if the configuration adds BOS, to the tokens
/// that the tokenizer_config.json beside `tokenizer_json` names. No effect without a
/// tokenizer_config.json.
void read_tokenizer_config(const std::filesystem::path& tokenizer_json, BpeSpec& spec);

}  // namespace xffl::tokenize
