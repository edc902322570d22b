// A LoRA adapter put into its model's weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "xffl/checkpoint/dtype.h"

namespace xffl::train {

/// Writes `out`, an HF folder with W + (alpha / rank) B A for each weight that the adapter adapts,
/// computed in float32 and rounded once to `dtype` (that of the model's weights when not given),
/// and the model's tokenizer; by rename, with its manifest. Returns the manifest's root hash. One
/// weight is in memory at a time. Throws kUsage when `out` exists, kRejected when the adapter is
/// not one of this model.
std::string merge_adapter(const std::filesystem::path& model, const std::filesystem::path& adapter,
                          const std::filesystem::path& out, std::optional<checkpoint::Dtype> dtype);

}  // namespace xffl::train
