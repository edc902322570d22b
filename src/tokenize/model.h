// What a Tokenizer has inside: a SentencePiece model or a byte-level BPE.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// `bytes` are those of `path`, a tokenizer.json; what stands beside it tells the end of texts.
/// Throws kCorrupt, kUnsupported.
std::unique_ptr<Tokenizer::Model> load_byte_level_bpe(const std::string& bytes,
                                                      const std::filesystem::path& path);

}  // namespace xffl::tokenize
