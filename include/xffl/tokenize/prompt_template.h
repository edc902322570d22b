// A facility's prompt around each document: "Scrivi un documento: {text}", or
// "<|user|>{prompt}<|assistant|>{text}" where documents answer prompts of their own.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace xffl::tokenize {

/// A document in its prompt; what comes before `text_begin` is prompt.
struct Prompted {
  std::string text;
  size_t text_begin = 0;
};

class PromptTemplate {
 public:
  /// "{text}": the document alone.
  PromptTemplate() = default;
  /// Exactly one {text}, and at most one {prompt}, before it; "{{" and "}}" are braces; any other
  /// brace is an error. Throws kUsage.
  explicit PromptTemplate(std::string_view pattern);

  bool has_prompt() const { return has_prompt_; }
  /// Nothing comes before the text.
  bool begins_with_text() const { return !has_prompt_ && before_text_.empty(); }
  Prompted apply(std::string_view prompt, std::string_view text) const;

 private:
  bool has_prompt_ = false;
  std::string before_prompt_;
  std::string before_text_;
  std::string after_text_;
};

}  // namespace xffl::tokenize
