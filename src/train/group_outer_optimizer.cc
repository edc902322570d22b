#include "group_outer_optimizer.h"

#include <torch/types.h>

#include <cmath>

namespace xffl::train {
namespace {

using Kind = job::OuterOptimizer;

UnitBuffers like_masters(const char* name, const shard::FlatParameters& parameters) {
  UnitBuffers buffers{name, {}};
  for (const shard::UnitState& state : parameters.states())
    buffers.units.push_back(
        at::zeros_like(state.master_S, state.master_S.options().dtype(at::kFloat)));
  return buffers;
}

}  // namespace

GroupOuterOptimizer::GroupOuterOptimizer(const shard::FlatParameters& parameters,
                                         const job::Outer& settings)
    : settings_(settings) {
  if (settings.kind == Kind::kAverage) return;
  buffers_.push_back(like_masters("anchor", parameters));
  for (size_t unit = 0; unit < parameters.states().size(); ++unit) {
    const shard::UnitState& state = parameters.states()[unit];
    buffers_[0].units[unit].copy_(shard::masters_of(state, {0, state.master_S.numel()}));
  }
  buffers_.push_back(like_masters("outer_first", parameters));
  if (settings.kind == Kind::kAdam) buffers_.push_back(like_masters("outer_second", parameters));
}

void GroupOuterOptimizer::update(size_t unit, at::Tensor master_S) {
  if (settings_.kind == Kind::kAverage) return;
  const at::Tensor& anchor_S = buffers_[0].units.at(unit);
  const at::Tensor gradient_S = at::sub(anchor_S, master_S);
  if (settings_.kind == Kind::kAdam) {
    adam(anchor_S, buffers_[1].units.at(unit), buffers_[2].units.at(unit), gradient_S);
  } else {
    sgd(anchor_S, buffers_[1].units.at(unit), gradient_S);
  }
  master_S.copy_(anchor_S);
}

void GroupOuterOptimizer::sgd(at::Tensor anchor_S, at::Tensor momentum_S,
                              at::Tensor gradient_S) const {
  momentum_S.mul_(settings_.momentum).add_(gradient_S);
  if (settings_.kind == Kind::kNesterov) {
    gradient_S.add_(momentum_S, settings_.momentum);
    anchor_S.sub_(gradient_S, settings_.learning_rate);
  } else {
    anchor_S.sub_(momentum_S, settings_.learning_rate);
  }
}

void GroupOuterOptimizer::adam(at::Tensor anchor_S, at::Tensor first_S, at::Tensor second_S,
                               at::Tensor gradient_S) const {
  const auto steps = static_cast<double>(num_steps_);
  const double first_bias = 1 - std::pow(settings_.beta1, steps);
  const double second_bias = 1 - std::pow(settings_.beta2, steps);
  first_S.mul_(settings_.beta1).add_(gradient_S, 1 - settings_.beta1);
  second_S.mul_(settings_.beta2).addcmul_(gradient_S, gradient_S, 1 - settings_.beta2);
  const at::Tensor divisor_S = second_S.sqrt().div_(std::sqrt(second_bias)).add_(settings_.epsilon);
  anchor_S.addcdiv_(first_S, divisor_S, -settings_.learning_rate / first_bias);
}

}  // namespace xffl::train
