// Which units each pipeline stage works on: pure.
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

/// The ranges of the stages, in order and together all units, so that the slowest stage is as fast
/// as can be: its time decides about the pipeline's. A unit costs as many multiplications a token
/// as its matrices have elements: a block those of its seven matrices, the head vocabulary x
/// hidden, the embedding, which is looked up, none. (Attention's products grow with the sequence,
/// but are the same in every block.) Among equally fast ways, that of the least sum of squares, and
/// of these the one with fewer units in early stages, which keep most activations.
///
/// Throws kConfig when there are more stages than units, kUnsupported for a tied head.
std::vector<UnitRange> stage_units(const checkpoint::LlamaConfig& config, int num_stages);

}  // namespace xffl::train
