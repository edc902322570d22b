// A tokenizer converts text to ids and back; train() learns one from text.
//
// xffl reads SentencePiece models (tokenizer.model, Llama 2) and BPE (tokenizer.json: byte-level as
// in Llama 3 and GPT-2, with byte fallback as in Llama 2). A tokenizer.json gives the ids of HF's
// tokenizers; the reader rejects settings with other results by name. SentencePiece trains models
// like Llama 2's: <unk> 0, <s> 1, </s> 2, 256 byte tokens (no text is unknown), no normalisation,
// each digit a token. HF's AutoTokenizer loads the folder that train() writes and gives the same
// ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/tokenize/documents.h"

namespace xffl::tokenize {

/// A token and the range of its bytes in the text (empty for a part of a character).
struct TokenSpan {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Tokenizer {
 public:
  /// Loads a tokenizer.model, a tokenizer.json, or a folder with one of the files (tokenizer.model
  /// if the folder has both). Throws kNotFound, kCorrupt, kUnsupported.
  explicit Tokenizer(const std::filesystem::path& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  uint64_t vocab_size() const;  // the largest id + 1
  /// The ids of the tokens before and after a text; -1: no token. The post-processor of a
  /// tokenizer.json and the tokenizer_config.json in the same folder name the tokens.
  int32_t bos_id() const;
  int32_t eos_id() const;

  /// The ids of `text`, UTF-8, without BOS and EOS. With a tokenizer.json, as in HF, the spelling
  /// of a special token in the text becomes the special token; with SentencePiece the spelling
  /// stays text. Thread-safe. Throws kRejected (tokenizer.json: not UTF-8, or a split pattern too
  /// expensive for the text).
  std::vector<int32_t> encode(std::string_view text) const;
  /// The ids of encode() with their places in `text`, which has at most 4 GiB.
  std::vector<TokenSpan> encode_spans(std::string_view text) const;
  /// The tokens of a text whose control tokens (BOS, <|eot_id|>) come only from outside `plain`,
  /// ascending ranges: in a plain range the spelling of a control token stays text. Outside, every
  /// kind of tokenizer recognises the spelling.
  std::vector<TokenSpan> encode_with_controls(std::string_view text,
                                              std::span<const ByteRange> plain) const;
  /// The id of the control token that `spelling` spells, if there is one.
  std::optional<int32_t> control_id(std::string_view spelling) const;
  /// The spelling of a control token. Throws kUnsupported.
  std::string spelling(int32_t id) const;
  /// The text of `ids` without special tokens; bytes that are not a character become U+FFFD.
  /// Thread-safe. Throws kRejected for an id beyond the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  class Model;

 private:
  std::unique_ptr<Model> model_;
};

enum class ModelType { kBpe, kUnigram };

struct TrainOptions {
  uint64_t vocab_size = 32000;
  ModelType model_type = ModelType::kBpe;
  double character_coverage = 0.9999;  // the rarest characters become bytes
  bool byte_fallback = true;
  uint64_t seed = 0;                            // the seed of the sample
  uint64_t sample_bytes = uint64_t{100} << 20;  // the sample's maximum size; bounds memory and time
  DocumentOptions documents;
};

struct TrainedModel {
  std::filesystem::path model;   // tokenizer.model
  std::filesystem::path config;  // tokenizer_config.json beside it; unigram: also tokenizer.json
  uint64_t vocab_size = 0;
  uint64_t num_lines = 0;  // in the training text
};

/// Trains a model on `inputs`. An `output` that ends in .model is the file's name; any other
/// `output` is a folder for tokenizer.model. Creates a missing folder. The same inputs and options
/// give the same bytes. Throws kRejected when the text is too small for the vocabulary, kUsage,
/// kNotFound, kCorrupt (with file:line).
TrainedModel train(const std::vector<std::filesystem::path>& inputs,
                   const std::filesystem::path& output, const TrainOptions& options);

}  // namespace xffl::tokenize
