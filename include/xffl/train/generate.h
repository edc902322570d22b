// Continues a prompt, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "xffl/llama/model.h"
#include "xffl/train/generate_options.h"

namespace xffl::train {

enum class FinishReason { kStop, kLength, kContext, kCancelled };
std::string_view to_string(FinishReason reason);  // "stop", "length", "context", "cancelled"

/// Calls `on_token` with each new id as soon as it is drawn, including a stop id; generation ends
/// with kCancelled if `on_token` returns false, and with kContext at the model's
/// max_position_embeddings.
///
/// Throws kUsage for options out of range, an empty prompt, an id beyond the vocabulary, and a
/// prompt without space for a new token; kFailed if the logits are not finite.
FinishReason generate(llama::Model& model, const std::vector<int64_t>& prompt,
                      const GenerateOptions& options,
                      const std::function<bool(int64_t id)>& on_token);

}  // namespace xffl::train
