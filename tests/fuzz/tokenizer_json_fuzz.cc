// tokenizer.json: ids and merges lie inside the vocabulary, and texts are encoded within it.
#include <algorithm>
#include <unordered_set>

#include "fuzz.h"
#include "model.h"
#include "tokenizer_json.h"

using namespace xffl;
using tokenize::BpeSpec;

namespace {

void check_spec(const BpeSpec& spec) {
  std::unordered_set<uint32_t> ids;
  std::unordered_set<std::string_view> tokens;
  for (const auto& [token, id] : spec.vocab) {
    fuzz::expect(id >= 0 && id < 1 << 24, "an id is in range");
    fuzz::expect(ids.insert(static_cast<uint32_t>(id)).second, "ids differ");
    fuzz::expect(tokens.insert(token).second, "tokens differ", token);
  }
  for (const tokenize::Merge& merge : spec.merges)
    fuzz::expect(
        ids.contains(merge.left) && ids.contains(merge.right) && ids.contains(merge.merged),
        "a merge is of tokens");
  const auto is_token = [&](int32_t id) {
    return id == -1 || ids.contains(static_cast<uint32_t>(id)) ||
           std::any_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                       [&](const tokenize::AddedToken& token) { return token.id == id; });
  };
  fuzz::expect(is_token(spec.bos_id) && is_token(spec.eos_id), "BOS and EOS are tokens");
}

void check_encoding(const tokenize::Tokenizer::Model& model, const std::string& text) {
  const auto ids = fuzz::accepted([&] { return model.encode(text); });
  if (!ids) return;
  for (const int32_t id : *ids)
    fuzz::expect(id >= 0 && static_cast<uint64_t>(id) < model.vocab_size, "ids of the vocabulary");
  fuzz::expect(ids->size() <= text.size() + 8, "a token has a character, or stands in front");
  const auto spans = fuzz::accepted([&] { return model.encode_spans(text); });
  fuzz::expect(spans && spans->size() == ids->size(), "spans are of the same tokens");
  for (size_t i = 0; i < spans->size(); ++i) {
    const tokenize::TokenSpan& span = (*spans)[i];
    fuzz::expect(span.id == (*ids)[i] && span.begin <= span.end && span.end <= text.size(),
                 "a token's bytes are in the text");
  }
  fuzz::accepted([&] { return model.decode(*ids); });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto spec = fuzz::accepted(
      [&] { return tokenize::read_tokenizer_json(fuzz::text_of(data, size), "tokenizer.json"); });
  if (!spec) return 0;
  check_spec(*spec);
  const auto model = fuzz::accepted([&] { return tokenize::make_bpe(*spec); });
  if (!model) return 0;
  for (const char* text : {"", "a", " ab  AB'll 12\n\n<s>x\xc3\xa9\xe2\x96\x81\xf0\x9f\x98\x80 "})
    check_encoding(**model, text);
  return 0;
}
