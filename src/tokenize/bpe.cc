// Byte-pair encoding with the symbols and the merges of a tokenizer.json, as in HF's tokenizers.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "added_tokens.h"
#include "characters.h"
#include "model.h"
#include "nfc.h"
#include "split_pattern.h"
#include "xffl/base/error.h"

namespace xffl::tokenize {
namespace {

constexpr size_t kFew = 48;
constexpr uint32_t kNoToken = std::numeric_limits<uint32_t>::max();  // of a byte

// The table of byte-pair merges, by rank. Thread-safe.
//
// How it works: apply() scans few symbols repeatedly for the best pair, without further memory. For
// many symbols, apply() keeps a linked list and a heap of candidates, and skips a candidate whose
// pair has changed.
class BpeMerges {
 public:
  /// `merges` are in order of rank; the last of equal pairs counts, as in HF's table.
  explicit BpeMerges(const std::vector<Merge>& merges);

  /// Merges neighbours in `symbols` until no pair has a merge. Each step merges the pair of the
  /// lowest rank, the leftmost among equal pairs. Time: n^2 for few symbols, n log n for many.
  void apply(std::vector<uint32_t>& symbols) const;

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = kNone;
    uint32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  size_t slot_of(uint64_t pair) const;
  const Slot& find(uint32_t left, uint32_t right) const;
  void apply_to_few(std::vector<uint32_t>& symbols) const;
  void apply_to_many(std::vector<uint32_t>& symbols) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_ = 0;
};

struct Candidate {
  uint32_t rank;
  uint32_t at;
  uint32_t left, right, merged;

  // The top of the heap is the candidate of the lowest rank, the leftmost among equal ranks.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

BpeMerges::BpeMerges(const std::vector<Merge>& merges) {
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    slots_[slot_of(pair)] = {pair, rank, merges[rank].merged};
  }
}

// The slot of `pair`, or the empty slot for `pair`.
inline size_t BpeMerges::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t at = pair * 0x9e3779b97f4a7c15u >> shift_;
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & mask;
  return at;
}

inline const BpeMerges::Slot& BpeMerges::find(uint32_t left, uint32_t right) const {
  return slots_[slot_of(pair_of(left, right))];
}

void BpeMerges::apply(std::vector<uint32_t>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kFew ? apply_to_few(symbols) : apply_to_many(symbols);
}

void BpeMerges::apply_to_few(std::vector<uint32_t>& symbols) const {
  std::array<const Slot*, kFew> merge;  // the merge of each symbol with the next symbol
  size_t last = symbols.size() - 1;
  for (size_t i = 0; i < last; ++i) merge[i] = &find(symbols[i], symbols[i + 1]);
  while (last > 0) {
    size_t best = 0;
    for (size_t i = 1; i < last; ++i) {
      if (merge[i]->rank < merge[best]->rank) best = i;
    }
    if (merge[best]->rank == kNone) break;
    symbols[best] = merge[best]->merged;
    for (size_t i = best + 1; i < last; ++i) {
      symbols[i] = symbols[i + 1];
      merge[i - 1] = merge[i];
    }
    --last;
    if (best > 0) merge[best - 1] = &find(symbols[best - 1], symbols[best]);
    if (best < last) merge[best] = &find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(last + 1);
}

void BpeMerges::apply_to_many(std::vector<uint32_t>& symbols) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(count), previous(count);
  std::vector<Candidate> first;
  const auto candidate = [&](uint32_t at, uint32_t right) {
    const Slot& slot = find(symbols[at], symbols[right]);
    return Candidate{slot.rank, at, symbols[at], symbols[right], slot.merged};
  };
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 == count) break;
    const Candidate found = candidate(i, i + 1);
    if (found.rank != kNone) first.push_back(found);
  }
  std::priority_queue<Candidate> heap({}, std::move(first));
  const auto push = [&](uint32_t at, uint32_t right) {
    const Candidate found = candidate(at, right);
    if (found.rank != kNone) heap.push(found);
  };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t right = next[top.at];
    if (symbols[top.at] != top.left || right == count || symbols[right] != top.right) continue;
    symbols[top.at] = top.merged;
    symbols[right] = kNone;  // removed
    next[top.at] = next[right];
    if (next[right] != count) previous[next[right]] = top.at;
    if (top.at != 0) push(previous[top.at], top.at);
    if (next[top.at] != count) push(top.at, next[top.at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

// A hash whose upper bits are well mixed.
uint64_t hash_of_word(std::string_view word) {
  uint64_t hash = word.size();
  while (true) {
    uint64_t part = 0;
    std::memcpy(&part, word.data(), word.size() < 8 ? word.size() : 8);
    hash = (hash ^ (hash >> 32) ^ part) * 0x9e3779b97f4a7c15u;
    if (word.size() <= 8) return hash * 0xbf58476d1ce4e5b9u;
    word.remove_prefix(8);
  }
}

// The ids of recent short words: texts repeat words, and merging dominates the work. A new word
// replaces the older word in an entry. Not thread-safe.
class WordCache {
 public:
  struct Entry {
    uint8_t num_bytes = 0;
    uint8_t num_ids = 0;
    char bytes[22] = {};
    int32_t ids[10] = {};
  };
  static_assert(sizeof(Entry) == 64);

  static bool fits(std::string_view word) { return word.size() <= sizeof(Entry::bytes); }

  /// The entry for a word that fits; the entry holds the word if holds(entry, word).
  Entry& place(std::string_view word) { return entries_[hash_of_word(word) >> (64 - kBits)]; }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.num_bytes == word.size() &&
           std::memcmp(entry.bytes, word.data(), word.size()) == 0;
  }

 private:
  static constexpr int kBits = 16;  // 4 MiB
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

// The common part of both kinds of BPE: cuts added tokens out of a text and applies merges to the
// symbols of each text between added tokens.
class Bpe : public Tokenizer::Model {
 protected:
  explicit Bpe(const BpeSpec& spec) : added_(spec.added_tokens), merges_(spec.merges) {
    const auto add = [this](int32_t id) {
      vocab_size = std::max(vocab_size, static_cast<uint64_t>(id) + 1);
    };
    for (const auto& [token, id] : spec.vocab) add(id);
    for (const AddedToken& token : spec.added_tokens) add(token.id);
    bos_id = spec.bos_id;
    eos_id = spec.eos_id;
  }

  /// Sets `parts` to the added tokens in `text` and the texts between added tokens. Throws
  /// kRejected unless `text` is UTF-8.
  void split(std::string_view text, std::vector<TextPart>& parts,
             std::span<const ByteRange> plain = {}) const {
    if (const size_t bad = find_invalid_utf8(text); bad != text.size())
      throw Error(ErrorKind::kRejected,
                  "the text is not UTF-8 at byte " + std::to_string(bad) + "; expected UTF-8");
    added_.split(text, parts, plain);
  }

  std::vector<TokenSpan> encode_spans(std::string_view text) const final {
    return encode_with_controls(text, {});
  }
  const AddedTokens& controls() const final { return added_; }

  static TokenSpan span_of(const TextPart& token) {
    return {token.id, static_cast<uint32_t>(token.begin), static_cast<uint32_t>(token.end)};
  }

  AddedTokens added_;
  BpeMerges merges_;
};

// How it works: the split patterns cut a text into words, and the merges join the bytes of each
// word. For each text, a thread borrows a workspace (matchers, cached words) from a pool.
class ByteLevelBpe final : public Bpe {
 public:
  explicit ByteLevelBpe(BpeSpec spec);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenSpan> encode_with_controls(std::string_view text,
                                              std::span<const ByteRange> plain) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  // The state of one thread.
  struct Workspace {
    explicit Workspace(const std::vector<SplitPattern>& patterns) {
      for (const SplitPattern& pattern : patterns) matchers.emplace_back(pattern);
    }
    std::vector<Matcher> matchers;
    WordCache cache;
    std::vector<uint32_t> symbols;
    std::vector<TextPart> parts;
    std::vector<NfcChange> changes;  // of the present part
    std::vector<int32_t> ids;
  };
  // Borrows a workspace from the pool; its destructor returns the workspace.
  class Lease;

  struct Token {
    std::string bytes;
    bool special = false;  // decoding omits the token
  };

  template <class OnToken, class OnWords>
  void each_part(std::string_view text, Workspace& workspace, OnToken on_token, OnWords on_words,
                 std::span<const ByteRange> plain = {}) const;
  void encode_words(std::string_view text, size_t pattern, Workspace& workspace) const;
  void encode_word(std::string_view word, Workspace& workspace) const;
  size_t word_slot(std::string_view word) const;

  std::vector<SplitPattern> patterns_;
  bool ignore_merges_;
  bool add_prefix_space_;
  bool nfc_;
  std::array<uint32_t, 256> byte_ids_{};
  std::vector<Token> tokens_;      // by id
  std::vector<int32_t> word_ids_;  // with ignore_merges_: a hash table of tokens_; -1: empty
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;
};

// The places in a text of the bytes of its normal form. A byte of a changed stretch stands for the
// whole stretch.
class OriginalPlaces {
 public:
  explicit OriginalPlaces(const std::vector<NfcChange>& changes) : changes_(changes) {}

  // The original place of a stretch of bytes that begins, or ends, at `at`.
  size_t begin(size_t at) const {
    const NfcChange change = last_before(at + 1);
    return at < change.new_end ? change.begin : at - change.new_end + change.end;
  }
  size_t end(size_t at) const {
    const NfcChange change = last_before(at);
    return at < change.new_end ? change.end : at - change.new_end + change.end;
  }

 private:
  // The last change that begins before `at`, or an empty change at 0.
  NfcChange last_before(size_t at) const {
    const auto next =
        std::partition_point(changes_.begin(), changes_.end(),
                             [&](const NfcChange& change) { return change.new_begin < at; });
    return next == changes_.begin() ? NfcChange{} : *(next - 1);
  }

  const std::vector<NfcChange>& changes_;
};

class ByteLevelBpe::Lease {
 public:
  explicit Lease(const ByteLevelBpe& model) : model_(model) {
    {
      const std::scoped_lock lock(model.mutex_);
      if (!model.workspaces_.empty()) {
        workspace_ = std::move(model.workspaces_.back());
        model.workspaces_.pop_back();
      }
    }
    if (!workspace_) workspace_ = std::make_unique<Workspace>(model.patterns_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    const std::scoped_lock lock(model_.mutex_);
    model_.workspaces_.push_back(std::move(workspace_));
  }
  Workspace& operator*() { return *workspace_; }

 private:
  const ByteLevelBpe& model_;
  std::unique_ptr<Workspace> workspace_;
};

ByteLevelBpe::ByteLevelBpe(BpeSpec spec)
    : Bpe(spec),
      ignore_merges_(spec.ignore_merges),
      add_prefix_space_(spec.add_prefix_space),
      nfc_(spec.nfc) {
  byte_ids_.fill(kNoToken);
  for (const std::string& pattern : spec.split_patterns) {
    with_context(spec.origin, [&] { patterns_.emplace_back(pattern); });
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
    // The vocabulary's spelling of a token has precedence.
    Token& place = tokens_[static_cast<size_t>(token.id)];
    if (place.bytes.empty()) place.bytes = byte_level_bytes(token.content).value_or(token.content);
    place.special = token.special;
  }
}

// The slot of `word` in word_ids_, or the empty slot for `word`: the table is at most half full.
size_t ByteLevelBpe::word_slot(std::string_view word) const {
  const size_t mask = word_ids_.size() - 1;
  size_t at = hash_of_word(word) >> 32 & mask;
  while (word_ids_[at] >= 0 && tokens_[static_cast<size_t>(word_ids_[at])].bytes != word) {
    at = (at + 1) & mask;
  }
  return at;
}

void ByteLevelBpe::encode_word(std::string_view word, Workspace& workspace) const {
  WordCache::Entry* entry = nullptr;
  if (WordCache::fits(word)) {
    entry = &workspace.cache.place(word);
    if (WordCache::holds(*entry, word)) {
      workspace.ids.insert(workspace.ids.end(), entry->ids, entry->ids + entry->num_ids);
      return;
    }
  }
  workspace.symbols.clear();
  const int32_t known = ignore_merges_ ? word_ids_[word_slot(word)] : -1;
  if (known >= 0) {
    workspace.symbols.push_back(static_cast<uint32_t>(known));
  } else {
    for (const char c : word) {
      const uint32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id != kNoToken) workspace.symbols.push_back(id);  // HF drops other bytes before merging
    }
    merges_.apply(workspace.symbols);
  }
  workspace.ids.insert(workspace.ids.end(), workspace.symbols.begin(), workspace.symbols.end());
  if (entry == nullptr || workspace.symbols.size() > std::size(entry->ids)) return;
  entry->num_bytes = static_cast<uint8_t>(word.size());
  entry->num_ids = static_cast<uint8_t>(workspace.symbols.size());
  std::memcpy(entry->bytes, word.data(), word.size());
  std::copy(workspace.symbols.begin(), workspace.symbols.end(), entry->ids);
}

// Each match of a pattern is a piece, and the text between two matches is a piece. The next pattern
// splits each piece; the pieces of the last pattern are words.
void ByteLevelBpe::encode_words(std::string_view text, size_t pattern, Workspace& workspace) const {
  if (text.empty()) return;
  if (pattern == patterns_.size()) {
    encode_word(text, workspace);
    return;
  }
  Matcher& matcher = workspace.matchers[pattern];
  matcher.set_text(text);
  size_t done = 0, begin = 0, end = 0;
  while (done < text.size() && matcher.next(done, begin, end)) {
    encode_words(text.substr(done, begin - done), pattern + 1, workspace);
    encode_words(text.substr(begin, end - begin), pattern + 1, workspace);
    done = end;
  }
  encode_words(text.substr(done), pattern + 1, workspace);
}

template <class OnToken, class OnWords>
void ByteLevelBpe::each_part(std::string_view text, Workspace& workspace, OnToken on_token,
                             OnWords on_words, std::span<const ByteRange> plain) const {
  split(text, workspace.parts, plain);
  std::string prefixed, normalized;
  for (const TextPart& part : workspace.parts) {
    if (part.id >= 0) {
      on_token(part);
      continue;
    }
    std::string_view words = text.substr(part.begin, part.end - part.begin);
    workspace.changes.clear();
    if (nfc_ && !is_plain_nfc(words)) words = normalized = to_nfc(words, workspace.changes);
    const bool prefix = add_prefix_space_ && words[0] != ' ';
    if (prefix) words = prefixed.assign(" ").append(words);
    encode_words(words, 0, workspace);
    on_words(part, words, prefix);
  }
}

std::vector<int32_t> ByteLevelBpe::encode(std::string_view text) const {
  Lease workspace(*this);
  std::vector<int32_t>& ids = (*workspace).ids;
  ids.clear();
  each_part(
      text, *workspace, [&](const TextPart& part) { ids.push_back(part.id); },
      [](const TextPart&, std::string_view, bool) {});
  return {ids.begin(), ids.end()};
}

std::vector<TokenSpan> ByteLevelBpe::encode_with_controls(std::string_view text,
                                                          std::span<const ByteRange> plain) const {
  Lease workspace(*this);
  std::vector<int32_t>& ids = (*workspace).ids;
  ids.clear();
  std::vector<TokenSpan> spans;
  const auto on_token = [&](const TextPart& part) { spans.push_back(span_of(part)); };
  const auto on_words = [&](const TextPart& part, std::string_view words, bool prefix) {
    size_t at = 0;  // the place in the words, which may begin with an added space
    const OriginalPlaces places((*workspace).changes);
    const auto in_words = [&](size_t i) { return prefix && i > 0 ? i - 1 : i; };
    for (const int32_t id : ids) {
      const std::string& bytes = tokens_[static_cast<size_t>(id)].bytes;
      // Dropped bytes may lie before each byte of the token.
      const size_t begin = words.find(bytes[0], at);
      for (const char byte : bytes) at = words.find(byte, at) + 1;
      spans.push_back({id, static_cast<uint32_t>(part.begin + places.begin(in_words(begin))),
                       static_cast<uint32_t>(part.begin + places.end(in_words(at)))});
    }
    ids.clear();
  };
  each_part(text, *workspace, on_token, on_words, plain);
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

// How it works: each text between added tokens is one word of any length. marked() replaces spaces
// by U+2581, and merge() merges the characters. A merge joins neighbours: the lengths of all
// previous symbols give the place of a symbol.
class ByteFallbackBpe final : public Bpe {
 public:
  explicit ByteFallbackBpe(BpeSpec spec);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenSpan> encode_with_controls(std::string_view text,
                                              std::span<const ByteRange> plain) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  struct Token {
    std::string text;
    int byte = -1;           // the value of "<0x0A>"
    uint32_t num_bytes = 0;  // the token's bytes in a text with U+2581 for spaces
    bool special = false;    // decoding omits the token
  };

  // Returns a part of the text with U+2581 for spaces and with the prefix of the part.
  std::string marked(std::string_view part, bool is_first) const;
  std::vector<uint32_t> merge(std::string_view marked) const;

  Prefix prefix_;
  bool strips_space_;
  std::array<uint32_t, 256> byte_ids_{};
  std::unordered_map<uint32_t, uint32_t> character_ids_;  // by code point
  std::vector<Token> tokens_;                             // by id
};

ByteFallbackBpe::ByteFallbackBpe(BpeSpec spec)
    : Bpe(spec), prefix_(spec.prefix), strips_space_(spec.strips_space) {
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

std::vector<int32_t> ByteFallbackBpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  std::vector<TextPart> parts;
  split(text, parts);
  for (const TextPart& part : parts) {
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

std::vector<TokenSpan> ByteFallbackBpe::encode_with_controls(
    std::string_view text, std::span<const ByteRange> plain) const {
  std::vector<TokenSpan> spans;
  std::vector<TextPart> parts;
  split(text, parts, plain);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      spans.push_back(span_of(part));
      continue;
    }
    const std::string_view words = text.substr(part.begin, part.end - part.begin);
    const std::string symbols = marked(words, part.begin == 0);
    // The place in the text of each byte of `symbols`; the prefix is at the start of the part.
    std::vector<uint32_t> origins;
    size_t length = 0;  // without the prefix
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

// Consecutive byte tokens become UTF-8 text or, when their bytes are not UTF-8, one U+FFFD per
// byte.
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

std::unique_ptr<Tokenizer::Model> make_bpe(BpeSpec spec) {
  if (spec.byte_fallback) return std::make_unique<ByteFallbackBpe>(std::move(spec));
  return std::make_unique<ByteLevelBpe>(std::move(spec));
}

}  // namespace xffl::tokenize
