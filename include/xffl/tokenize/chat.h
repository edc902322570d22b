// Conversations as the text that a chat model was trained on, and the ranges of that text that have
// a loss.
//
// A template gives the text of the model's chat template in HF transformers, without tools and
// without a prompt for a further answer. The loss counts exactly the text that the model generates:
// each assistant's message and the token that ends it. Control tokens come from the template alone:
// a message that spells a control token stays text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/tokenize/documents.h"
#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {

struct RenderedChat {
  std::string text;
  std::vector<ByteRange> plain;  // the messages' own text: no control token in it; ascending
  std::vector<ByteRange> loss;   // ascending
};

/// llama-2, llama-3, llama-3.1, chatml, mistral, mistral-v3: docs/user/tokenizing.md has the texts.
std::vector<std::string> chat_template_names();

class ChatTemplate {
 public:
  /// Throws kUsage for an unknown name; kUnsupported when `tokenizer` lacks a control token of the
  /// template.
  ChatTemplate(std::string_view name, const Tokenizer& tokenizer);

  /// Thread-safe. Throws kCorrupt for an unknown role, or roles in an order that the template does
  /// not have; the message names the number of the turn, from 0.
  RenderedChat render(std::span<const ChatMessage> messages) const;

  class Builder;

 private:
  void (*render_)(std::span<const ChatMessage>, Builder&);
  std::string bos_, eos_;
};

}  // namespace xffl::tokenize
