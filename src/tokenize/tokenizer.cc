#include "xffl/tokenize/tokenizer.h"

#include <sentencepiece_processor.h>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr uint64_t kMaxModelBytes = uint64_t{64} << 20;

}  // namespace

struct Tokenizer::Model {
  sentencepiece::SentencePieceProcessor processor;
};

Tokenizer::Tokenizer(const std::filesystem::path& path) : model_(std::make_unique<Model>()) {
  const std::string bytes = read_file(path, kMaxModelBytes);
  const auto status = model_->processor.LoadFromSerializedProto(bytes);
  if (!status.ok() || model_->processor.GetPieceSize() < 1) {
    throw Error(ErrorKind::kCorrupt,
                "tokenizer " + path.string() +
                    " is not a SentencePiece model: " + log::printable(status.ToString(), 200));
  }
  vocab_size_ = static_cast<uint64_t>(model_->processor.GetPieceSize());
  bos_id_ = model_->processor.bos_id();
  eos_id_ = model_->processor.eos_id();
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  const auto status = model_->processor.Encode(text, &ids);
  if (!status.ok()) {
    throw Error(ErrorKind::kRejected,
                "the tokenizer refused a text: " + log::printable(status.ToString(), 200));
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<uint64_t>(id) < vocab_size_) continue;
    throw Error(ErrorKind::kRejected,
                "id " + std::to_string(id) + " is not one of this tokenizer's " +
                    std::to_string(vocab_size_) + ": another tokenizer made it");
  }
  std::string text;
  const auto status = model_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok()) {
    throw Error(ErrorKind::kRejected,
                "the tokenizer refused ids: " + log::printable(status.ToString(), 200));
  }
  return text;
}

}  // namespace xffl::tokenize
