// A SentencePiece model: text to ids and back, and how one is trained.
//
// Models are made to look like LLaMA's: <unk> 0, <s> 1, </s> 2, 256 byte tokens so that no text is
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

class Tokenizer {
 public:
  /// Loads a tokenizer.model. Throws kNotFound, kCorrupt.
  explicit Tokenizer(const std::filesystem::path& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  uint64_t vocab_size() const { return vocab_size_; }
  int32_t bos_id() const { return bos_id_; }  // -1: the model has none
  int32_t eos_id() const { return eos_id_; }

  /// Ids of `text`, without BOS and EOS. Thread-safe.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Text of `ids`; BOS and EOS vanish. Thread-safe. Throws kRejected for an id beyond the
  /// vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

 private:
  struct Model;
  std::unique_ptr<Model> model_;
  uint64_t vocab_size_ = 0;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
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
