#include "xffl/tokenize/prompt_template.h"

#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {
namespace {

constexpr std::string_view kText = "{text}";
constexpr std::string_view kPrompt = "{prompt}";

[[noreturn]] void refuse(std::string_view pattern, const std::string& problem) {
  throw Error(ErrorKind::kUsage,
              "template \"" + log::printable(pattern, 200) + "\" " + problem +
                  "; write for example 'Scrivi un documento: {text}', and {{ or }} for a brace");
}

}  // namespace

PromptTemplate::PromptTemplate(std::string_view pattern) {
  bool found = false;
  std::string* part = &before_text_;
  for (size_t i = 0; i < pattern.size();) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      *part += rest[0];
      i += 2;
    } else if (rest.starts_with(kText)) {
      if (found) refuse(pattern, "has {text} twice");
      found = true;
      part = &after_text_;
      i += kText.size();
    } else if (rest.starts_with(kPrompt)) {
      if (has_prompt_ || found) refuse(pattern, "has {prompt} twice or behind {text}");
      has_prompt_ = true;
      before_prompt_ = std::exchange(before_text_, "");
      i += kPrompt.size();
    } else if (rest[0] == '{' || rest[0] == '}') {
      refuse(pattern, "has a field or brace at column " + std::to_string(i + 1) +
                          " that is neither {text} nor {prompt}");
    } else {
      *part += rest[0];
      ++i;
    }
  }
  if (!found) refuse(pattern, "has no {text}");
}

Prompted PromptTemplate::apply(std::string_view prompt, std::string_view text) const {
  Prompted result;
  if (has_prompt_) result.text.append(before_prompt_).append(prompt);
  result.text += before_text_;
  result.text_begin = result.text.size();
  result.text.append(text).append(after_text_);
  return result;
}

}  // namespace xffl::tokenize
