#include "xffl/tokenize/tokenizer.h"

#include "model.h"
#include "tokenizer_json.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl::tokenize {
namespace {

namespace fs = std::filesystem;

bool is_json(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

// A SentencePiece model begins with the field of its first piece; Llama 3's file of the same name
// is a list of base64 lines.
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

// What stands beside the file tells the end of texts.
std::unique_ptr<Tokenizer::Model> load_json(const std::string& bytes, const fs::path& path) {
  BpeSpec spec = read_bpe_spec(bytes, path.string());
  read_tokenizer_config(path, spec);
  return spec.byte_fallback ? make_byte_fallback_bpe(std::move(spec))
                            : make_byte_level_bpe(std::move(spec));
}

}  // namespace

Tokenizer::Tokenizer(const fs::path& path) {
  const File file = fs::is_directory(path) ? find_in_folder(path)
                                           : File{path, read_file(path, kMaxTokenizerBytes)};
  const bool json = file.path.extension() == ".json" || is_json(file.bytes);
  model_ = json ? load_json(file.bytes, file.path) : load_sentencepiece(file.bytes, file.path);
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

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<uint64_t>(id) < model_->vocab_size) continue;
    throw Error(ErrorKind::kRejected,
                "id " + std::to_string(id) + " is not one of this tokenizer's " +
                    std::to_string(model_->vocab_size) + ": another tokenizer made it");
  }
  return model_->decode(ids);
}

}  // namespace xffl::tokenize
