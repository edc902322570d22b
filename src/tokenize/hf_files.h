// What HF transformers reads beside a SentencePiece model to give the same ids.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "xffl/tokenize/tokenizer.h"

namespace xffl::tokenize {

/// Writes tokenizer_config.json into `folder` and, for a unigram model, tokenizer.json, which holds
/// the model for the tokenizers library. `model` is a SentencePiece model as train() makes it.
/// Returns the path of tokenizer_config.json.
std::filesystem::path write_hf_files(std::string_view model, ModelType type,
                                     const std::filesystem::path& folder);

}  // namespace xffl::tokenize
