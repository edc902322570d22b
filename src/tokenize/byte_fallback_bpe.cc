// How it works: added tokens are cut out of the text; what is between them is one word, whatever
// its length: its spaces become U+2581, its characters symbols, and these are merged. Where each
// symbol came from is known by its length, as a merge joins neighbours.
#include <array>
#include <unordered_map>

#include "added_tokens.h"
#include "bpe_merges.h"
#include "bpe_spec.h"
#include "byte_level.h"
#include "code_points.h"
#include "model.h"
#include "xffl/base/error.h"

namespace xffl::tokenize {
namespace {

class ByteFallbackBpe final : public Tokenizer::Model {
 public:
  explicit ByteFallbackBpe(BpeSpec spec);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenSpan> encode_spans(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  struct Token {
    std::string text;
    int byte = -1;           // of "<0x0A>"
    uint32_t num_bytes = 0;  // that it stands for, of a text with U+2581 for spaces
    bool special = false;    // decoding leaves it out
  };

  // A part of the text as the merges see it: bytes with U+2581 for spaces.
  std::string marked(std::string_view part, bool is_first) const;
  std::vector<uint32_t> merge(std::string_view marked) const;
  std::vector<TextPart> parts_of(std::string_view text) const;

  AddedTokens added_;
  BpeMerges merges_;
  Prefix prefix_;
  bool strips_space_;
  std::array<uint32_t, 256> byte_ids_{};
  std::unordered_map<uint32_t, uint32_t> character_ids_;  // of a code point
  std::vector<Token> tokens_;                             // by id
};

ByteFallbackBpe::ByteFallbackBpe(BpeSpec spec)
    : added_(spec.added_tokens),
      merges_(spec.merges),
      prefix_(spec.prefix),
      strips_space_(spec.strips_space) {
  for (const auto& [token, id] : spec.vocab)
    vocab_size = std::max(vocab_size, static_cast<uint64_t>(id) + 1);
  for (const AddedToken& token : spec.added_tokens)
    vocab_size = std::max(vocab_size, static_cast<uint64_t>(token.id) + 1);
  tokens_.resize(vocab_size);
  for (auto& [token, id] : spec.vocab) {
    Token& place = tokens_[static_cast<size_t>(id)];
    place.byte = byte_of_fallback_token(token);
    if (place.byte >= 0) byte_ids_[static_cast<size_t>(place.byte)] = static_cast<uint32_t>(id);
    size_t end = 0;
    const bool is_text = !token.empty() && find_invalid_utf8(token) == token.size();
    const uint32_t first = is_text ? next_code_point(token, end) : 0;
    if (is_text && end == token.size()) character_ids_[first] = static_cast<uint32_t>(id);
    place.num_bytes = place.byte >= 0 ? 1 : static_cast<uint32_t>(token.size());
    place.text = std::move(token);
  }
  for (const AddedToken& token : spec.added_tokens) {
    Token& place = tokens_[static_cast<size_t>(token.id)];
    place.text = token.content;
    place.byte = byte_of_fallback_token(token.content);
    place.special = token.special;
  }
  bos_id = spec.bos_id;
  eos_id = spec.eos_id;
}

std::string ByteFallbackBpe::marked(std::string_view part, bool is_first) const {
  std::string result;
  const bool has_mark = part.starts_with(' ') || part.starts_with(kSpaceMark);
  if (prefix_ == Prefix::kEach || (prefix_ == Prefix::kMissing && !has_mark) ||
      (prefix_ == Prefix::kFirst && is_first && !has_mark))
    result = kSpaceMark;
  for (const char c : part) {
    if (c == ' ') {
      result += kSpaceMark;
    } else {
      result += c;
    }
  }
  return result;
}

std::vector<uint32_t> ByteFallbackBpe::merge(std::string_view text) const {
  std::vector<uint32_t> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const auto known = character_ids_.find(next_code_point(text, at));
    if (known != character_ids_.end()) {
      symbols.push_back(known->second);
      continue;
    }
    for (size_t i = begin; i < at; ++i)
      symbols.push_back(byte_ids_[static_cast<unsigned char>(text[i])]);
  }
  merges_.apply(symbols);
  return symbols;
}

std::vector<TextPart> ByteFallbackBpe::parts_of(std::string_view text) const {
  if (const size_t bad = find_invalid_utf8(text); bad != text.size()) {
    throw Error(ErrorKind::kRejected, "a text is not UTF-8 at byte " + std::to_string(bad) +
                                          ": the tokenizer takes characters");
  }
  std::vector<TextPart> parts;
  added_.split(text, parts);
  return parts;
}

std::vector<int32_t> ByteFallbackBpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const TextPart& part : parts_of(text)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    for (const uint32_t id :
         merge(marked(text.substr(part.begin, part.end - part.begin), part.begin == 0)))
      ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<TokenSpan> ByteFallbackBpe::encode_spans(std::string_view text) const {
  std::vector<TokenSpan> spans;
  for (const TextPart& part : parts_of(text)) {
    if (part.id >= 0) {
      spans.push_back(
          {part.id, static_cast<uint32_t>(part.begin), static_cast<uint32_t>(part.end)});
      continue;
    }
    const std::string_view words = text.substr(part.begin, part.end - part.begin);
    const std::string symbols = marked(words, part.begin == 0);
    // Where in the text each byte of the symbols comes from; the prefix from none of it.
    std::vector<uint32_t> origins;
    size_t length = 0;  // of the symbols of `words`
    for (const char c : words) length += c == ' ' ? kSpaceMark.size() : 1;
    origins.assign(symbols.size() - length, static_cast<uint32_t>(part.begin));
    for (size_t i = 0; i < words.size(); ++i)
      origins.insert(origins.end(), words[i] == ' ' ? kSpaceMark.size() : 1,
                     static_cast<uint32_t>(part.begin + i));
    origins.push_back(static_cast<uint32_t>(part.end));
    size_t at = 0;
    for (const uint32_t id : merge(symbols)) {
      const size_t end = at + tokens_[id].num_bytes;
      spans.push_back({static_cast<int32_t>(id), origins[at], origins[end]});
      at = end;
    }
  }
  return spans;
}

// Bytes in a row are a text, or as many U+FFFD as there are bytes.
std::string ByteFallbackBpe::decode(std::span<const int32_t> ids) const {
  std::string result, bytes;
  const auto flush = [&] {
    if (find_invalid_utf8(bytes) == bytes.size()) {
      result += bytes;
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) result += "\xEF\xBF\xBD";
    }
    bytes.clear();
  };
  for (const int32_t id : ids) {
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (token.special) continue;
    if (token.byte >= 0) {
      bytes += static_cast<char>(token.byte);
      continue;
    }
    flush();
    for (size_t at = 0; at < token.text.size();) {
      const bool mark = std::string_view(token.text).substr(at).starts_with(kSpaceMark);
      result += mark ? ' ' : token.text[at];
      at += mark ? kSpaceMark.size() : 1;
    }
  }
  flush();
  if (strips_space_ && result.starts_with(' ')) result.erase(0, 1);
  return result;
}

}  // namespace

std::unique_ptr<Tokenizer::Model> make_byte_fallback_bpe(BpeSpec spec) {
  return std::make_unique<ByteFallbackBpe>(std::move(spec));
}

}  // namespace xffl::tokenize
