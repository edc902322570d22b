// What both kinds of BPE read of a tokenizer.json's steps: normalizer, pre-tokenizer,
// post-processor, decoder.
#pragma once

#include <string>
#include <vector>

#include "bpe_spec.h"
#include "xffl/base/json.h"

namespace xffl::tokenize {

/// The steps of a "Sequence", or the step itself. `where` names it in messages.
std::vector<Json> steps_of(const Json& json, const char* list, const std::string& where);

/// Throws kUnsupported: what `what` says is "not supported".
[[noreturn]] void refuse_bpe(const std::string& origin, const std::string& what);
/// The same of a step with a type of its own.
[[noreturn]] void refuse_step(const std::string& origin, const std::string& step,
                              const Json& found);

/// Fills spec.prefix from the normalizer or the pre-tokenizer of a model with byte fallback, and
/// checks these and the decoder; `file` is the whole of it.
void read_byte_fallback_steps(const Json& file, BpeSpec& spec);

}  // namespace xffl::tokenize
