#include "xffl/tokenize/chat.h"

#include <algorithm>
#include <initializer_list>

#include "characters.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::tokenize {

class ChatTemplate::Builder {
 public:
  Builder(std::string_view bos, std::string_view eos) : bos_(bos), eos_(eos) {}

  Builder& bos() { return literal(bos_); }
  Builder& eos() { return literal(eos_); }
  /// Adds text of the template; the spelling of a control token becomes the token.
  Builder& literal(std::string_view text) {
    result_.text += text;
    return *this;
  }
  /// Adds text of a message.
  Builder& message(std::string_view text) {
    result_.plain.push_back({result_.text.size(), result_.text.size() + text.size()});
    result_.text += text;
    return *this;
  }
  Builder& begin_loss() {
    loss_begin_ = result_.text.size();
    return *this;
  }
  void end_loss() { result_.loss.push_back({loss_begin_, result_.text.size()}); }
  RenderedChat take() { return std::move(result_); }

 private:
  std::string_view bos_, eos_;
  size_t loss_begin_ = 0;
  RenderedChat result_;
};

namespace {

using Messages = std::span<const ChatMessage>;
using ChatBuilder = ChatTemplate::Builder;

// The characters that strip() of Python's str removes.
bool is_stripped(uint32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view strip_end(std::string_view text) {
  for (size_t at = text.size(); at > 0;) {
    const size_t end = at;
    if (!is_stripped(previous_code_point(text, at))) return text.substr(0, end);
  }
  return {};
}

std::string_view strip(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_stripped(next_code_point(text, at))) return strip_end(text.substr(begin));
  }
  return {};
}

[[noreturn]] void fail_at(size_t turn, const std::string& problem) {
  throw Error(ErrorKind::kCorrupt, "message " + std::to_string(turn) + " " + problem);
}

void check_roles(Messages messages, std::initializer_list<std::string_view> known) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (std::ranges::find(known, messages[i].role) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known)
      names += (names.empty() ? "" : ", ") + std::string(name);
    fail_at(i, "has the role '" + log::printable(messages[i].role, 40) +
                   "', this template has the roles " + names);
  }
}

// Messages after the first `from` take turns: user, assistant, user, ...
void check_turns(Messages messages, size_t from) {
  for (size_t i = from; i < messages.size(); ++i) {
    const std::string_view expected = (i - from) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected)
      fail_at(i, "is of '" + log::printable(messages[i].role, 40) + "', expected '" +
                     std::string(expected) + "': this template takes turns, user first");
  }
}

void render_llama2(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"system", "user", "assistant"});
  const bool system = messages[0].role == "system";
  check_turns(messages, system ? 1 : 0);
  for (size_t i = system ? 1 : 0; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == "assistant") {
      out.begin_loss().literal(" ").message(strip(content)).literal(" ").eos().end_loss();
    } else if (i == 1 && system) {
      // The system text and the user's are stripped as one.
      const std::string_view user = strip_end(content);
      out.bos().literal("[INST] <<SYS>>\n").message(messages[0].content).literal("\n<</SYS>>");
      out.literal(user.empty() ? "" : "\n\n").message(user).literal(" [/INST]");
    } else {
      out.bos().literal("[INST] ").message(strip(content)).literal(" [/INST]");
    }
  }
}

void render_llama3_turns(Messages messages, ChatBuilder& out) {
  for (const ChatMessage& each : messages) {
    const bool loss = each.role == "assistant";
    out.literal("<|start_header_id|>").literal(each.role).literal("<|end_header_id|>\n\n");
    out.begin_loss().message(strip(each.content)).literal("<|eot_id|>");
    if (loss) out.end_loss();
  }
}

void render_llama3(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"system", "user", "assistant", "tool", "ipython"});
  out.bos();
  render_llama3_turns(messages, out);
}

void render_llama31(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"system", "user", "assistant"});
  const bool system = messages[0].role == "system";
  out.bos().literal("<|start_header_id|>system<|end_header_id|>\n\n");
  out.literal("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
  out.message(system ? strip(messages[0].content) : std::string_view()).literal("<|eot_id|>");
  render_llama3_turns(messages.subspan(system ? 1 : 0), out);
}

void render_chatml(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"system", "user", "assistant", "tool"});
  for (const ChatMessage& each : messages) {
    out.literal("<|im_start|>").literal(each.role).literal("\n");
    out.begin_loss().message(each.content).literal("<|im_end|>");
    if (each.role == "assistant") out.end_loss();
    out.literal("\n");
  }
}

void render_mistral(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"user", "assistant"});
  check_turns(messages, 0);
  out.bos();
  for (const ChatMessage& each : messages) {
    if (each.role == "user")
      out.literal("[INST] ").message(each.content).literal(" [/INST]");
    else
      out.begin_loss().message(each.content).eos().end_loss();
  }
}

void render_mistral_v3(Messages messages, ChatBuilder& out) {
  check_roles(messages, {"user", "assistant"});
  check_turns(messages, 0);
  out.bos();
  for (const ChatMessage& each : messages) {
    if (each.role == "user")
      out.literal("[INST] ").message(each.content).literal("[/INST]");
    else
      out.begin_loss().literal(" ").message(strip(each.content)).eos().end_loss();
  }
}

struct Template {
  std::string_view name;
  void (*render)(Messages, ChatBuilder&);
  // The control tokens of BOS and EOS if the tokenizer names no others; empty: not in the template.
  std::string_view bos, eos;
  std::vector<std::string_view> controls;
};

const std::vector<Template>& templates() {
  static const std::vector<std::string_view> kLlama3{"<|start_header_id|>", "<|end_header_id|>",
                                                     "<|eot_id|>"};
  static const std::vector<Template> kTemplates{
      {"llama-2", render_llama2, "<s>", "</s>", {}},
      {"llama-3", render_llama3, "<|begin_of_text|>", "", kLlama3},
      {"llama-3.1", render_llama31, "<|begin_of_text|>", "", kLlama3},
      {"chatml", render_chatml, "", "", {"<|im_start|>", "<|im_end|>"}},
      {"mistral", render_mistral, "<s>", "</s>", {}},
      {"mistral-v3", render_mistral_v3, "<s>", "</s>", {"[INST]", "[/INST]"}},
  };
  return kTemplates;
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const Template& each : templates()) names.emplace_back(each.name);
  return names;
}

ChatTemplate::ChatTemplate(std::string_view name, const Tokenizer& tokenizer) {
  const auto found = std::ranges::find(templates(), name, &Template::name);
  if (found == templates().end()) {
    std::string names;
    for (const Template& each : templates())
      names += (names.empty() ? "" : ", ") + std::string(each.name);
    throw Error(ErrorKind::kUsage,
                "unknown chat template '" + log::printable(name, 40) + "': expected " + names);
  }
  render_ = found->render;
  const auto check = [&](const std::string& spelling) {
    if (tokenizer.control_id(spelling)) return;
    throw Error(ErrorKind::kUnsupported,
                "the tokenizer has no control token '" + log::printable(spelling, 60) +
                    "', which the chat template " + std::string(name) +
                    " needs: use the template of the model that the tokenizer belongs to");
  };
  const auto named = [&](int32_t id, std::string_view otherwise) {
    std::string spelling(otherwise);
    if (!spelling.empty() && id >= 0) spelling = tokenizer.spelling(id);
    if (!spelling.empty()) check(spelling);
    return spelling;
  };
  bos_ = named(tokenizer.bos_id(), found->bos);
  eos_ = named(tokenizer.eos_id(), found->eos);
  for (const std::string_view each : found->controls) check(std::string(each));
}

RenderedChat ChatTemplate::render(Messages messages) const {
  if (messages.empty()) throw Error(ErrorKind::kCorrupt, "a conversation without a message");
  Builder builder(bos_, eos_);
  render_(messages, builder);
  return builder.take();
}

}  // namespace xffl::tokenize
