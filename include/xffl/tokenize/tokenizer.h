// A tokenizer: text to ids and back, and how one is trained.
//
// Read are SentencePiece models (tokenizer.model, Llama 2) and BPE (tokenizer.json: byte-level as
// in Llama 3 and GPT-2, with byte fallback as in Llama 2), the latter with the ids of HF's
// tokenizers; what would not be the same is refused by name. Models are trained with SentencePiece
// and made to look like Llama 2's: <unk> 0, <s> 1, </s> 2, 256 byte tokens so that no text is
// unknown, no normalisation, digits apart. HF's AutoTokenizer loads the folder that train() writes
// and gives the same ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {

/// A token, and the bytes of the text that it stands for (none for a part of a character).
struct TokenSpan {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

class Tokenizer {
 public:
  /// Loads a tokenizer.model, a tokenizer.json, or the one that a folder holds (of both, the
  /// model). Throws kNotFound, kCorrupt, kUnsupported.
  explicit Tokenizer(const std::filesystem::path& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  uint64_t vocab_size() const;  // the largest id + 1
  /// What stands before and behind a text; -1: nothing does. For a tokenizer.json, by its
  /// post-processor and the tokenizer_config.json beside it.
  int32_t bos_id() const;
  int32_t eos_id() const;

  /// Ids of `text`, UTF-8, without BOS and EOS. A tokenizer.json finds its special tokens where a
  /// text spells them, as HF does; SentencePiece does not. Thread-safe. Throws kRejected (for a
  /// tokenizer.json: not UTF-8, a split pattern that is too expensive for the text).
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same ids with their places; at most 4 GiB of text.
  std::vector<TokenSpan> encode_spans(std::string_view text) const;
  /// Text of `ids`; special tokens vanish, bytes that are no character become U+FFFD. Thread-safe.
  /// Throws kRejected for an id beyond the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  class Model;

 private:
  std::unique_ptr<Model> model_;
};

enum class ModelType { kBpe, kUnigram };

struct TrainOptions {
  uint64_t vocab_size = 32000;
  ModelType model_type = ModelType::kBpe;
  double character_coverage = 0.9999;  // rarer characters become bytes
  bool byte_fallback = true;
  uint64_t seed = 0;  // draws the lines when there are more than sample_bytes
  uint64_t sample_bytes = uint64_t{100} << 20;  // text learnt from; bounds memory and time
  DocumentOptions documents;
};

struct TrainedModel {
  std::filesystem::path model;   // tokenizer.model
  std::filesystem::path config;  // tokenizer_config.json, beside it; unigram: tokenizer.json, too
  uint64_t vocab_size = 0;
  uint64_t num_lines = 0;  // learnt from
};

/// Learns a model from `inputs`. `output` ending in .model is the file's name, else a folder for
/// tokenizer.model; created when absent. The same inputs and options give the same bytes.
/// Throws kRejected when the text does not support the vocabulary, kUsage, kNotFound, kCorrupt
/// (with file:line).
TrainedModel train(const std::vector<std::filesystem::path>& inputs,
                   const std::filesystem::path& output, const TrainOptions& options);

}  // namespace xffl::tokenize
