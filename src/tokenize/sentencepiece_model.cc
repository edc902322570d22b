#include <sentencepiece_processor.h>

#include "model.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

class SentencePieceModel final : public Tokenizer::Model {
 public:
  SentencePieceModel(const std::string& bytes, const std::filesystem::path& path) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok() || processor_.GetPieceSize() < 1) {
      throw Error(ErrorKind::kCorrupt,
                  "tokenizer " + path.string() +
                      " is not a SentencePiece model: " + log::printable(status.ToString(), 200));
    }
    vocab_size = static_cast<uint64_t>(processor_.GetPieceSize());
    bos_id = processor_.bos_id();
    eos_id = processor_.eos_id();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "a text");
    return ids;
  }

  std::vector<TokenSpan> encode_spans(std::string_view text) const override {
    sentencepiece::ImmutableSentencePieceText pieces;
    check(processor_.Encode(text, pieces.mutable_proto()), "a text");
    std::vector<TokenSpan> spans;
    spans.reserve(pieces.pieces_size());
    for (const auto& piece : pieces.pieces()) {
      spans.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end()});
    }
    return spans;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text), "ids");
    return text;
  }

 private:
  static void check(const sentencepiece::util::Status& status, const char* what) {
    if (status.ok()) return;
    throw Error(ErrorKind::kRejected, "the tokenizer refused " + std::string(what) + ": " +
                                          log::printable(status.ToString(), 200));
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer::Model> load_sentencepiece(const std::string& bytes,
                                                     const std::filesystem::path& path) {
  return std::make_unique<SentencePieceModel>(bytes, path);
}

}  // namespace xffl::tokenize
