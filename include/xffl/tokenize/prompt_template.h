// A facility's prompt around each document: "Scrivi un documento: {text}".
#pragma once

#include <string>
#include <string_view>

namespace xffl::tokenize {

class PromptTemplate {
 public:
  /// "{text}": the document alone.
  PromptTemplate() = default;
  /// Exactly one {text}; "{{" and "}}" are braces; any other brace is an error. Throws kUsage.
  explicit PromptTemplate(std::string_view pattern);

  std::string apply(std::string_view text) const;

 private:
  std::string before_;
  std::string after_;
};

}  // namespace xffl::tokenize
