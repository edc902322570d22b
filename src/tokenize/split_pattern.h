// The pattern by which a tokenizer.json cuts a text into words, before its byte pairs are merged.
//
// HF's tokenizers read it with Oniguruma (Ruby's dialect), this program with PCRE2. What both read
// alike is passed on; what they read differently (white space, categories of characters, escapes)
// is spelled out; everything else is refused by name, so that a split is HF's or an error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace xffl::tokenize {

/// The pattern in PCRE2's dialect. Throws kUnsupported naming what cannot be carried over, kCorrupt
/// for what is no pattern.
std::string to_pcre2(std::string_view pattern);

/// A compiled pattern; shared by threads, each of which has its own Matcher.
class SplitPattern {
 public:
  /// Throws kUnsupported (also for a pattern that matches nothing at all, the empty text),
  /// kCorrupt.
  explicit SplitPattern(std::string_view pattern);
  /// One character of a word, as the \w of Rust's regular expressions: for single_word tokens.
  static SplitPattern word_character();
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;

 private:
  friend class Matcher;
  struct Compiled;
  explicit SplitPattern(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

/// Finds a pattern's matches in one text after another. Not thread-safe; `pattern` outlives it.
class Matcher {
 public:
  explicit Matcher(const SplitPattern& pattern);
  ~Matcher();
  Matcher(Matcher&&) noexcept;

  /// The text to search, valid UTF-8, which outlives the calls of next().
  void set_text(std::string_view text);
  /// The next match at or after `from`, as [begin, end); false when there is none. Throws kRejected
  /// when the search takes more steps than a sound pattern needs.
  bool next(size_t from, size_t& begin, size_t& end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::tokenize
