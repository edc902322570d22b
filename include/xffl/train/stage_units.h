// Assigns units to pipeline stages; pure.
#pragma once

#include <vector>

#include "xffl/checkpoint/llama_config.h"

namespace xffl::train {

/// Units [first, end) of llama::parameter_specs().
struct UnitRange {
  int first = 0;
  int end = 0;
  bool operator==(const UnitRange&) const = default;
};

/// The unit ranges of the stages, in order. Minimizes the cost of the slowest stage, which
/// determines the pipeline's speed. The cost of a unit is its multiplications per token: the
/// elements of a block's seven matrices, vocabulary x hidden for the head, 0 for the embedding.
/// (The cost of attention grows with the sequence but is equal in every block.) Among equal
/// solutions the least sum of squared stage costs wins, then fewer units in early stages, which
/// keep most activations.
///
/// Throws kConfig if there are more stages than units, kUnsupported for a tied head.
std::vector<UnitRange> stage_units(const checkpoint::LlamaConfig& config, int num_stages);

}  // namespace xffl::train
