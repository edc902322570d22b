#include "xffl/tokenize/prompt_template.h"

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr std::string_view kField = "{text}";

[[noreturn]] void refuse(std::string_view pattern, const std::string& problem) {
  throw Error(ErrorKind::kUsage,
              "template \"" + log::printable(pattern, 200) + "\" " + problem +
                  "; write for example 'Scrivi un documento: {text}', and {{ or }} for a brace");
}

}  // namespace

PromptTemplate::PromptTemplate(std::string_view pattern) {
  bool found = false;
  for (size_t i = 0; i < pattern.size();) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      (found ? after_ : before_) += rest[0];
      i += 2;
    } else if (rest.starts_with(kField)) {
      if (found) refuse(pattern, "has {text} twice");
      found = true;
      i += kField.size();
    } else if (rest[0] == '{' || rest[0] == '}') {
      refuse(pattern,
             "has a field or brace at column " + std::to_string(i + 1) + " that is not {text}");
    } else {
      (found ? after_ : before_) += rest[0];
      ++i;
    }
  }
  if (!found) refuse(pattern, "has no {text}");
}

std::string PromptTemplate::apply(std::string_view text) const {
  std::string prompt;
  prompt.reserve(before_.size() + text.size() + after_.size());
  return prompt.append(before_).append(text).append(after_);
}

}  // namespace xffl::tokenize
