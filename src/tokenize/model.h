// The implementations of a Tokenizer: a SentencePiece model or one of two kinds of BPE.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "tokenizer_json.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {

/// Thread-safe. Tokenizer documents the functions. The ids for decode() are below vocab_size.
class Tokenizer::Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::vector<TokenSpan> encode_spans(std::string_view text) const = 0;
  virtual std::vector<TokenSpan> encode_with_controls(std::string_view text,
                                                      std::span<const ByteRange> plain) const = 0;
  virtual const AddedTokens& controls() const = 0;  // those with `special` are control tokens
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  uint64_t vocab_size = 0;
  int32_t bos_id = -1;
  int32_t eos_id = -1;
};

/// BPE whose symbols are bytes (Llama 3) or, with spec.byte_fallback, characters (Llama 2). Throws
/// kUnsupported.
std::unique_ptr<Tokenizer::Model> make_bpe(BpeSpec spec);

}  // namespace xffl::tokenize
