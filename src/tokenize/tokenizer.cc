#include "xffl/tokenize/tokenizer.h"

#include <sentencepiece_processor.h>

#include "model.h"
#include "tokenizer_json.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

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
    std::vector<AddedToken> controls;
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      if (processor_.IsControl(id) && !processor_.IdToPiece(id).empty())
        controls.push_back({.content = processor_.IdToPiece(id), .id = id, .special = true});
    controls_.emplace(std::move(controls));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "encode the text");
    return ids;
  }

  std::vector<TokenSpan> encode_spans(std::string_view text) const override {
    sentencepiece::ImmutableSentencePieceText pieces;
    check(processor_.Encode(text, pieces.mutable_proto()), "encode the text");
    std::vector<TokenSpan> spans;
    spans.reserve(pieces.pieces_size());
    for (const auto& piece : pieces.pieces()) {
      spans.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end()});
    }
    return spans;
  }

  std::vector<TokenSpan> encode_with_controls(std::string_view text,
                                              std::span<const ByteRange> plain) const override {
    std::vector<TextPart> parts;
    controls_->split(text, parts, plain);
    std::vector<TokenSpan> spans;
    for (const TextPart& part : parts) {
      const auto begin = static_cast<uint32_t>(part.begin);
      if (part.id >= 0) {
        spans.push_back({part.id, begin, static_cast<uint32_t>(part.end)});
        continue;
      }
      for (const TokenSpan& each : encode_spans(text.substr(part.begin, part.end - part.begin)))
        spans.push_back({each.id, begin + each.begin, begin + each.end});
    }
    return spans;
  }

  const AddedTokens& controls() const override { return *controls_; }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text), "decode the ids");
    return text;
  }

 private:
  static void check(const sentencepiece::util::Status& status, const char* action) {
    if (status.ok()) return;
    throw Error(ErrorKind::kRejected, "SentencePiece cannot " + std::string(action) + ": " +
                                          log::printable(status.ToString(), 200));
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::optional<AddedTokens> controls_;
};

bool is_json(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

// A SentencePiece model begins with the tag of its first piece; Llama 3's tokenizer.model is a list
// of base64 lines.
bool is_sentencepiece(std::string_view bytes) { return bytes.starts_with('\x0a'); }

struct File {
  fs::path path;
  std::string bytes;
};

File find_in_folder(const fs::path& folder) {
  const fs::path model = folder / "tokenizer.model", json = folder / "tokenizer.json";
  if (fs::exists(model)) {
    File file{model, read_file(model, kMaxTokenizerBytes)};
    if (is_sentencepiece(file.bytes) || !fs::exists(json)) return file;
  }
  if (fs::exists(json)) return {json, read_file(json, kMaxTokenizerBytes)};
  throw Error(ErrorKind::kNotFound,
              "folder " + folder.string() + " has no tokenizer.model and no tokenizer.json");
}

std::unique_ptr<Tokenizer::Model> load_json(const std::string& bytes, const fs::path& path) {
  BpeSpec spec = read_tokenizer_json(bytes, path.string());
  read_tokenizer_config(path, spec);
  return make_bpe(std::move(spec));
}

}  // namespace

Tokenizer::Tokenizer(const fs::path& path) {
  const File file = fs::is_directory(path) ? find_in_folder(path)
                                           : File{path, read_file(path, kMaxTokenizerBytes)};
  const bool json = file.path.extension() == ".json" || is_json(file.bytes);
  if (json)
    model_ = load_json(file.bytes, file.path);
  else
    model_ = std::make_unique<SentencePieceModel>(file.bytes, file.path);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

uint64_t Tokenizer::vocab_size() const { return model_->vocab_size; }
int32_t Tokenizer::bos_id() const { return model_->bos_id; }
int32_t Tokenizer::eos_id() const { return model_->eos_id; }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const { return model_->encode(text); }

std::vector<TokenSpan> Tokenizer::encode_spans(std::string_view text) const {
  return model_->encode_spans(text);
}

std::vector<TokenSpan> Tokenizer::encode_with_controls(std::string_view text,
                                                       std::span<const ByteRange> plain) const {
  return model_->encode_with_controls(text, plain);
}

std::optional<int32_t> Tokenizer::control_id(std::string_view spelling) const {
  for (const AddedToken& token : model_->controls().tokens())
    if (token.special && token.content == spelling) return token.id;
  return std::nullopt;
}

std::string Tokenizer::spelling(int32_t id) const {
  for (const AddedToken& token : model_->controls().tokens())
    if (token.special && token.id == id) return token.content;
  throw Error(ErrorKind::kUnsupported,
              "token " + std::to_string(id) + " of the tokenizer is no control token");
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<uint64_t>(id) < model_->vocab_size) continue;
    throw Error(ErrorKind::kRejected,
                "id " + std::to_string(id) + " is not below this tokenizer's vocabulary size " +
                    std::to_string(model_->vocab_size) + ": the ids are another tokenizer's");
  }
  return model_->decode(ids);
}

}  // namespace xffl::tokenize
