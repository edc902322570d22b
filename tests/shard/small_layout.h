// Two units of a few parameters, and whole masters.
#pragma once

#include <torch/types.h>

#include <vector>

#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {

inline std::vector<Parameter> small_layout() {
  return {
      {{5, 7}, 0, true}, {{7}, 1, false}, {{3, 4}, 1, true}, {{70, 70}, 1, true}, {{4}, 1, false}};
}

/// A unit's whole masters in float32. Collective.
inline at::Tensor whole_masters(FlatParameters& flat, int unit) {
  const UnitState whole = flat.gather_masters(unit);
  return masters_of(whole, {0, whole.master_S.numel()});
}

/// Collective; a copy where masters are sharded.
inline at::Tensor master(FlatParameters& flat, size_t index) {
  return flat.view(whole_masters(flat, flat.layout().places()[index].unit), index);
}

}  // namespace xffl::shard
