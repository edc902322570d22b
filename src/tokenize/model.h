// What a Tokenizer has inside: a SentencePiece model or one of two kinds of BPE.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe_spec.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {

/// Thread-safe. The functions are those of Tokenizer; decode() gets ids below vocab_size().
class Tokenizer::Model {
 public:
  virtual ~Model() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::vector<TokenSpan> encode_spans(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  uint64_t vocab_size = 0;
  int32_t bos_id = -1;
  int32_t eos_id = -1;
};

/// `bytes` are those of `path`, a SentencePiece model. Throws kCorrupt.
std::unique_ptr<Tokenizer::Model> load_sentencepiece(const std::string& bytes,
                                                     const std::filesystem::path& path);

/// What a tokenizer.json asks for, with symbols that are bytes (Llama 3), or characters (Llama 2,
/// spec.byte_fallback). Throws kUnsupported.
std::unique_ptr<Tokenizer::Model> make_byte_level_bpe(BpeSpec spec);
std::unique_ptr<Tokenizer::Model> make_byte_fallback_bpe(BpeSpec spec);

}  // namespace xffl::tokenize
