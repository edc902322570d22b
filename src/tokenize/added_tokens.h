// Added tokens, such as <|end_of_text|>: a tokenizer cuts added tokens out of a text before all
// other steps.
//
// As in HF's AddedVocabulary, split() first finds the tokens with `normalized` off. Between these
// tokens, split() then finds the tokens with `normalized` on. At each place the longest token wins;
// `lstrip` and `rstrip` extend a token over adjacent white space.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "split_pattern.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;  // decoding omits the token
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

/// A part of a text: an added token, or the text between added tokens (id -1).
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

/// Thread-safe.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// Sets `parts` to the parts of `text`, valid UTF-8, in order; an empty text has no parts.
  /// In the ranges of `plain`, ascending, a special token stays text.
  void split(std::string_view text, std::vector<TextPart>& parts,
             std::span<const ByteRange> plain = {}) const;

 private:
  // The tokens of one search, as a tree of their bytes.
  class Tree {
   public:
    void add(std::string_view content, uint32_t index);
    bool empty() const { return nodes_.size() == 1; }
    /// Finds the next token at or after `from`: among the tokens at one place that `accepts`
    /// takes, the longest token.
    template <class Accepts>
    bool find(std::string_view text, size_t from, size_t& begin, size_t& end, uint32_t& index,
              Accepts accepts) const;

   private:
    struct Node {
      std::map<unsigned char, uint32_t> next;
      int64_t token = -1;
    };
    std::vector<Node> nodes_{1};
    std::vector<bool> begins_ = std::vector<bool>(256, false);
    int only_begin_ = -1;  // the first byte of all tokens; -1: the first bytes differ
  };

  void split_by(const Tree& tree, std::string_view text, const TextPart& part,
                std::vector<TextPart>& parts, std::span<const ByteRange> plain) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  Tree exact_;
  Tree normalized_;
  std::optional<SplitPattern> word_;  // set when a token is a single_word
};

}  // namespace xffl::tokenize
