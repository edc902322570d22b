// The state.json of a checkpoint or of an optimizer state (checkpoints.h), as text.
//
// A crash, a full disk or another program may have damaged the file. parse_checkpoint_json()
// checks every field that the readers use, so a damaged file is skipped with a reason and does not
// end the training. Free of LibTorch.
#pragma once

#include <cstddef>
#include <string_view>

#include "xffl/base/json.h"

namespace xffl::train {

inline constexpr int kCheckpointVersion = 4;
inline constexpr int kOptimizerStateVersion = 2;
inline constexpr uint64_t kMaxStateBytes = 16 << 20;
inline constexpr size_t kNumCounts = 4;  // counts of a group: see Trainer::gather_counts()

/// Throws kCorrupt for a missing field and for a value of a wrong type or out of range,
/// kUnsupported for another format version; the message has `origin` and the field.
Json parse_checkpoint_json(std::string_view text, std::string_view origin);

}  // namespace xffl::train
