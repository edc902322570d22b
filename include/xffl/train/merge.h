// Merges a LoRA adapter into its model's weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "xffl/checkpoint/dtype.h"

namespace xffl::train {

/// Writes the HF folder `out` by rename, with a manifest and the model's tokenizer, and returns the
/// manifest's root hash. Each weight that the adapter targets becomes W + (alpha / rank) B A,
/// computed in float32 and rounded once to `dtype` (default: the type of the model's weights).
/// Holds one weight in memory at a time. Throws kUsage if `out` exists, kRejected if the adapter
/// does not fit the model.
std::string merge_adapter(const std::filesystem::path& model, const std::filesystem::path& adapter,
                          const std::filesystem::path& out, std::optional<checkpoint::Dtype> dtype);

}  // namespace xffl::train
