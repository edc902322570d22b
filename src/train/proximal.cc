#include "xffl/train/proximal.h"

#include <torch/types.h>

#include <algorithm>

namespace xffl::train {
namespace {

constexpr int64_t kPieceOfMasters = 1 << 22;  // elements whose masters are made float32 at once

}  // namespace

Proximal::Proximal(shard::FlatParameters& parameters, double mu)
    : parameters_(parameters), mu_(mu) {
  if (mu == 0) return;
  for (const shard::UnitState& state : parameters.states())
    given_S_.push_back(shard::masters_of(state, {0, state.master_S.numel()}).clone());
}

void Proximal::add_gradients(double scale) {
  if (mu_ == 0) return;
  for (size_t unit = 0; unit < given_S_.size(); ++unit) {
    shard::UnitState& state = parameters_.states()[unit];
    for (int64_t begin = 0; begin < state.master_S.numel(); begin += kPieceOfMasters) {
      const int64_t count = std::min(kPieceOfMasters, state.master_S.numel() - begin);
      const at::Tensor moved =
          shard::masters_of(state, {begin, count}).sub(given_S_[unit].narrow(0, begin, count));
      state.gradient_S.narrow(0, begin, count).add_(moved, scale * mu_);
    }
  }
}

}  // namespace xffl::train
