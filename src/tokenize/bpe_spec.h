// What a tokenizer.json with a byte-level BPE model asks for: read, checked, and nothing guessed.
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

struct BpeSpec {
  std::string origin;  // the file's name, for messages
  // Tokens of the model, spelled in the alphabet of byte_level.h, and their ids, all different.
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
