// How it works: added tokens are cut out of the text, the split patterns cut what is between them
// into words, and each word's bytes are merged; words met before are remembered. What threads must
// not share (match state, remembered words) is lent from a pool for the time of one text.
#include <bit>
#include <mutex>
#include <optional>

#include "added_tokens.h"
#include "bpe_merges.h"
#include "bpe_spec.h"
#include "byte_level.h"
#include "code_points.h"
#include "model.h"
#include "split_pattern.h"
#include "word_cache.h"
#include "xffl/base/error.h"

namespace xffl::tokenize {
namespace {

class ByteLevelBpe final : public Tokenizer::Model {
 public:
  explicit ByteLevelBpe(BpeSpec spec);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenSpan> encode_spans(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  // What one thread works with.
  struct Bench {
    explicit Bench(const std::vector<SplitPattern>& patterns) {
      for (const SplitPattern& pattern : patterns) matchers.emplace_back(pattern);
    }
    std::vector<Matcher> matchers;
    WordCache cache;
    std::vector<uint32_t> symbols;
    std::vector<TextPart> parts;
    std::vector<int32_t> ids;
  };
  // Gives its bench back at the end.
  class Lease;

  struct Token {
    std::string bytes;
    bool special = false;  // decoding leaves it out
  };

  template <class OnToken, class OnWords>
  void each_part(std::string_view text, Bench& bench, OnToken on_token, OnWords on_words) const;
  void encode_words(std::string_view text, size_t pattern, Bench& bench) const;
  void encode_word(std::string_view word, Bench& bench) const;
  size_t word_slot(std::string_view word) const;

  std::vector<SplitPattern> patterns_;
  AddedTokens added_;
  BpeMerges merges_;
  bool ignore_merges_;
  bool add_prefix_space_;
  std::array<uint32_t, 256> byte_ids_{};
  std::vector<Token> tokens_;      // by id
  std::vector<int32_t> word_ids_;  // where merges are ignored: a hash table of tokens_; -1: empty
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Bench>> benches_;
};

class ByteLevelBpe::Lease {
 public:
  explicit Lease(const ByteLevelBpe& model) : model_(model) {
    {
      const std::scoped_lock lock(model.mutex_);
      if (!model.benches_.empty()) {
        bench_ = std::move(model.benches_.back());
        model.benches_.pop_back();
      }
    }
    if (!bench_) bench_ = std::make_unique<Bench>(model.patterns_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    const std::scoped_lock lock(model_.mutex_);
    model_.benches_.push_back(std::move(bench_));
  }
  Bench& operator*() { return *bench_; }

 private:
  const ByteLevelBpe& model_;
  std::unique_ptr<Bench> bench_;
};

ByteLevelBpe::ByteLevelBpe(BpeSpec spec)
    : added_(spec.added_tokens),
      merges_(spec.merges),
      ignore_merges_(spec.ignore_merges),
      add_prefix_space_(spec.add_prefix_space) {
  for (const std::string& pattern : spec.split_patterns) {
    with_context(spec.origin, [&] { patterns_.emplace_back(pattern); });
  }
  for (const auto& [token, id] : spec.vocab) {
    vocab_size = std::max(vocab_size, static_cast<uint64_t>(id) + 1);
  }
  for (const AddedToken& token : spec.added_tokens) {
    vocab_size = std::max(vocab_size, static_cast<uint64_t>(token.id) + 1);
  }
  tokens_.resize(vocab_size);
  std::vector<int32_t> words;
  for (const auto& [token, id] : spec.vocab) {
    const std::optional<std::string> bytes = byte_level_bytes(token);
    tokens_[static_cast<size_t>(id)].bytes = bytes.value_or(token);
    if (!bytes) continue;
    words.push_back(id);
    if (bytes->size() == 1)
      byte_ids_[static_cast<unsigned char>((*bytes)[0])] = static_cast<uint32_t>(id);
  }
  if (ignore_merges_) word_ids_.assign(std::bit_ceil(2 * words.size()), -1);
  for (const int32_t id : words) {
    if (ignore_merges_) word_ids_[word_slot(tokens_[static_cast<size_t>(id)].bytes)] = id;
  }
  for (const AddedToken& token : spec.added_tokens) {
    // One that the vocabulary has, too, is spelled as the vocabulary spells it.
    Token& place = tokens_[static_cast<size_t>(token.id)];
    if (place.bytes.empty()) place.bytes = byte_level_bytes(token.content).value_or(token.content);
    place.special = token.special;
  }
  bos_id = spec.bos_id;
  eos_id = spec.eos_id;
}

// Where `word` is in the table, or the empty place for it: the table is at most half full.
size_t ByteLevelBpe::word_slot(std::string_view word) const {
  const size_t mask = word_ids_.size() - 1;
  size_t at = hash_of_word(word) >> 32 & mask;
  while (word_ids_[at] >= 0 && tokens_[static_cast<size_t>(word_ids_[at])].bytes != word) {
    at = (at + 1) & mask;
  }
  return at;
}

void ByteLevelBpe::encode_word(std::string_view word, Bench& bench) const {
  WordCache::Entry* entry = nullptr;
  if (WordCache::fits(word)) {
    entry = &bench.cache.place(word);
    if (WordCache::holds(*entry, word)) {
      bench.ids.insert(bench.ids.end(), entry->ids, entry->ids + entry->num_ids);
      return;
    }
  }
  bench.symbols.clear();
  const int32_t known = ignore_merges_ ? word_ids_[word_slot(word)] : -1;
  if (known >= 0) {
    bench.symbols.push_back(static_cast<uint32_t>(known));
  } else {
    for (const char c : word) bench.symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    merges_.apply(bench.symbols);
  }
  bench.ids.insert(bench.ids.end(), bench.symbols.begin(), bench.symbols.end());
  if (entry == nullptr || bench.symbols.size() > std::size(entry->ids)) return;
  entry->num_bytes = static_cast<uint8_t>(word.size());
  entry->num_ids = static_cast<uint8_t>(bench.symbols.size());
  std::memcpy(entry->bytes, word.data(), word.size());
  std::copy(bench.symbols.begin(), bench.symbols.end(), entry->ids);
}

// What a pattern matches is a piece, and so is what is between two matches; each goes to the next
// pattern, from the last as a word.
void ByteLevelBpe::encode_words(std::string_view text, size_t pattern, Bench& bench) const {
  if (text.empty()) return;
  if (pattern == patterns_.size()) {
    encode_word(text, bench);
    return;
  }
  Matcher& matcher = bench.matchers[pattern];
  matcher.set_text(text);
  size_t done = 0, begin = 0, end = 0;
  while (done < text.size() && matcher.next(done, begin, end)) {
    encode_words(text.substr(done, begin - done), pattern + 1, bench);
    encode_words(text.substr(begin, end - begin), pattern + 1, bench);
    done = end;
  }
  encode_words(text.substr(done), pattern + 1, bench);
}

template <class OnToken, class OnWords>
void ByteLevelBpe::each_part(std::string_view text, Bench& bench, OnToken on_token,
                             OnWords on_words) const {
  if (const size_t bad = find_invalid_utf8(text); bad != text.size()) {
    throw Error(ErrorKind::kRejected, "a text is not UTF-8 at byte " + std::to_string(bad) +
                                          ": the tokenizer takes characters");
  }
  added_.split(text, bench.parts);
  std::string prefixed;
  for (const TextPart& part : bench.parts) {
    if (part.id >= 0) {
      on_token(part);
      continue;
    }
    std::string_view words = text.substr(part.begin, part.end - part.begin);
    const bool prefix = add_prefix_space_ && words[0] != ' ';
    if (prefix) words = prefixed.assign(" ").append(words);
    encode_words(words, 0, bench);
    on_words(part, prefix);
  }
}

std::vector<int32_t> ByteLevelBpe::encode(std::string_view text) const {
  Lease bench(*this);
  std::vector<int32_t>& ids = (*bench).ids;
  ids.clear();
  each_part(
      text, *bench, [&](const TextPart& part) { ids.push_back(part.id); },
      [](const TextPart&, bool) {});
  return {ids.begin(), ids.end()};
}

std::vector<TokenSpan> ByteLevelBpe::encode_spans(std::string_view text) const {
  Lease bench(*this);
  std::vector<int32_t>& ids = (*bench).ids;
  ids.clear();
  std::vector<TokenSpan> spans;
  const auto on_token = [&](const TextPart& part) {
    spans.push_back({part.id, static_cast<uint32_t>(part.begin), static_cast<uint32_t>(part.end)});
  };
  const auto on_words = [&](const TextPart& part, bool prefix) {
    size_t at = 0;  // in the words, which a space may precede that the text does not have
    for (const int32_t id : ids) {
      const auto place = [&](size_t i) {
        return static_cast<uint32_t>(part.begin + (prefix && i > 0 ? i - 1 : i));
      };
      const size_t end = at + tokens_[static_cast<size_t>(id)].bytes.size();
      spans.push_back({id, place(at), place(end)});
      at = end;
    }
    ids.clear();
  };
  each_part(text, *bench, on_token, on_words);
  return spans;
}

std::string ByteLevelBpe::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (!token.special) bytes += token.bytes;
  }
  return to_valid_utf8(bytes);
}

}  // namespace

std::unique_ptr<Tokenizer::Model> make_byte_level_bpe(BpeSpec spec) {
  return std::make_unique<ByteLevelBpe>(std::move(spec));
}

}  // namespace xffl::tokenize
