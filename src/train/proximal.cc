#include "xffl/train/proximal.h"

#include <torch/types.h>

namespace xffl::train {

Proximal::Proximal(shard::FlatParameters& parameters, double mu)
    : parameters_(parameters), mu_(mu) {
  if (mu == 0) return;
  for (const shard::UnitState& state : parameters.states())
    given_S_.push_back(state.master_S.clone());
}

void Proximal::add_gradients(double scale) {
  if (mu_ == 0) return;
  for (size_t unit = 0; unit < given_S_.size(); ++unit) {
    shard::UnitState& state = parameters_.states()[unit];
    state.gradient_S.add_(state.master_S.sub(given_S_[unit]), scale * mu_);
  }
}

}  // namespace xffl::train
