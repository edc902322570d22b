// The pattern by which a tokenizer.json cuts a text into words, before BPE merges byte pairs.
//
// HF's tokenizers match the pattern with Oniguruma (Ruby's dialect), xffl with PCRE2. The
// translator copies constructs with the same meaning in both dialects and spells out constructs
// with another meaning (white space, categories of characters, escapes). The translator rejects all
// other constructs by name. A split therefore equals HF's split, or is an error
// (docs/decisions/0006).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace xffl::tokenize {

/// A compiled pattern. Threads share it; each thread has its own Matcher.
class SplitPattern {
 public:
  /// Throws kUnsupported, naming the construct, also for a pattern that matches the empty text;
  /// kCorrupt for an invalid pattern.
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

/// Finds the matches of a pattern. Not thread-safe; `pattern` outlives the matcher.
class Matcher {
 public:
  explicit Matcher(const SplitPattern& pattern);
  ~Matcher();
  Matcher(Matcher&&) noexcept;

  /// Sets the text to search: valid UTF-8, which outlives the calls of next().
  void set_text(std::string_view text);
  /// Finds the next match at or after `from`, as [begin, end); false without a match. Throws
  /// kRejected when the search takes more steps than a normal pattern needs.
  bool next(size_t from, size_t& begin, size_t& end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl::tokenize
