// The bytes of a tokenizer.json, taken apart.
//
// A vocabulary of 128,000 entries and 280,000 merges would be slow and large as a tree of JSON
// values: these two go straight into lists, the rest into a Json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xffl/base/json.h"

namespace xffl::tokenize {

inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;

struct TokenizerJson {
  Json rest;                                           // without model.vocab and model.merges
  std::vector<std::pair<std::string, int64_t>> vocab;  // of a model whose vocab is an object
  bool vocab_is_object = false;
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Throws kCorrupt with `origin`: not JSON, nested too deep, a key twice, an entry of another type.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& origin);

}  // namespace xffl::tokenize
