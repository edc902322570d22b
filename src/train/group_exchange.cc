// Shapes: S elements of a rank's part of a unit; N elements of one piece of the part. M elements of
// a piece for each of G groups; K of N elements for each of the R ranks of a group that hold the
// same elements.
#include "group_exchange.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "xffl/base/error.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {
namespace {

constexpr int64_t kPiece = 1 << 22;  // elements of one exchange: 32 MB in float64

// Replaces one piece by its weighted mean over the groups: a reduce-scatter of the products, then
// an all-gather of the means.
void mean_of_piece(comm::Group& across, at::Device device, at::Tensor values_N, double weight,
                   double total, at::ScalarType sum_dtype) {
  const int64_t n = values_N.numel();
  const int64_t groups = across.size();
  const int64_t m = (n + groups - 1) / groups;
  const auto options = at::TensorOptions().device(device);
  const at::Tensor products_GM = at::zeros({groups * m}, options.dtype(sum_dtype));
  products_GM.narrow(0, 0, n).copy_(values_N);
  products_GM.mul_(weight);
  const at::Tensor sum_M = at::empty({m}, options.dtype(sum_dtype));
  across.reduce_scatter(sum_M, products_GM);
  const at::Tensor mean_M = sum_M.div_(total).to(at::kFloat);
  const at::Tensor mean_GM = at::empty({groups * m}, options.dtype(at::kFloat));
  across.all_gather(mean_GM, mean_M);
  values_N.copy_(mean_GM.narrow(0, 0, n));
}

job::Outer outer_settings(const JobGroups& groups, const job::RankGroups& settings) {
  const bool is_used = groups.count() > 1 && settings.exchange == job::Exchange::kWeights;
  job::Outer none;
  none.kind = job::OuterOptimizer::kAverage;
  return is_used ? settings.outer : none;
}

using Kind = job::OuterOptimizer;

UnitBuffers like_masters(const char* name, const shard::FlatParameters& parameters) {
  UnitBuffers buffers{name, {}};
  for (const shard::UnitState& state : parameters.states())
    buffers.units.push_back(
        at::zeros_like(state.master_S, state.master_S.options().dtype(at::kFloat)));
  return buffers;
}

}  // namespace

JobGroups::JobGroups(comm::Group& world, int64_t count) : world_(world) {
  if (count < 1 || world.size() % count != 0) {
    throw Error(ErrorKind::kConfig, "training.groups.count is " + std::to_string(count) +
                                        ", which does not divide the " +
                                        std::to_string(world.size()) + " ranks of this job");
  }
  const int size = world.size() / static_cast<int>(count);
  const int group = world.rank() / size;
  if (count == 1) {
    across_ = comm::make_single_rank();
    return;
  }
  inner_ = world.split(strided_ranks(group * size, size, 1), "group");
  across_ =
      world.split(strided_ranks(world.rank() % size, static_cast<int>(count), size), "across");
}

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

GroupExchange::GroupExchange(const JobGroups& groups, shard::FlatParameters& parameters,
                             const job::RankGroups& settings, at::Device device)
    : groups_(groups),
      parameters_(parameters),
      settings_(settings),
      device_(device),
      outer_(parameters, outer_settings(groups, settings)) {}

// If no group has a target token in its batch, all groups count equally.
GroupExchange::Weights GroupExchange::weights(int64_t tokens) const {
  const Weights equal{1, static_cast<double>(groups_.count())};
  if (settings_.weighting == job::GroupWeighting::kEqual) return equal;
  at::Tensor total = at::full({1}, tokens, at::TensorOptions().dtype(at::kLong).device(device_));
  groups_.across().all_reduce(total);
  if (total.item<int64_t>() == 0) return equal;
  return {static_cast<double>(tokens), static_cast<double>(total.item<int64_t>())};
}

// Each rank of a group exchanges its share of the elements that all ranks of the group hold.
void GroupExchange::mean_over_groups(at::Tensor values_S, double weight, double total,
                                     at::ScalarType sum_dtype) const {
  comm::Group& inner = groups_.inner();
  const int64_t ranks = parameters_.num_state_parts() == 1 ? inner.size() : 1;
  for (int64_t begin = 0; begin < values_S.numel(); begin += kPiece * ranks) {
    const int64_t n = std::min(kPiece * ranks, values_S.numel() - begin);
    const at::Tensor values_N = values_S.narrow(0, begin, n);
    if (ranks == 1) {
      mean_of_piece(groups_.across(), device_, values_N, weight, total, sum_dtype);
      continue;
    }
    const int64_t k = (n + ranks - 1) / ranks;
    const at::Tensor all_RK =
        at::zeros({ranks * k}, at::TensorOptions().dtype(at::kFloat).device(device_));
    all_RK.narrow(0, 0, n).copy_(values_N);
    const at::Tensor mine_K = all_RK.narrow(0, inner.rank() * k, k);
    mean_of_piece(groups_.across(), device_, mine_K, weight, total, sum_dtype);
    inner.all_gather(all_RK, mine_K);
    values_N.copy_(all_RK.narrow(0, 0, n));
  }
}

void GroupExchange::exchange_gradients(int64_t tokens) {
  if (!exchanges(job::Exchange::kGradients)) return;
  const Weights share = weights(tokens);
  for (shard::UnitState& state : parameters_.states()) {
    mean_over_groups(state.gradient_S, share.mine / share.total, 1, at::kFloat);
  }
}

void GroupExchange::after_step(int64_t steps_done, int64_t tokens) {
  if (!exchanges(job::Exchange::kWeights)) return;
  tokens_since_ += tokens;
  steps_since_ += 1;
  if (steps_done % settings_.interval == 0) exchange_weights();
}

void GroupExchange::finish() {
  if (steps_since_ > 0) exchange_weights();
}

void GroupExchange::exchange_weights() {
  const Weights share = weights(tokens_since_);
  std::vector<shard::UnitState>& states = parameters_.states();
  outer_.begin_step();
  for (size_t unit = 0; unit < states.size(); ++unit) {
    const shard::Range all{0, states[unit].master_S.numel()};
    const at::Tensor master_S = shard::masters_of(states[unit], all);
    mean_over_groups(master_S, share.mine, share.total, at::kDouble);
    outer_.update(unit, master_S);
    shard::set_masters(states[unit], all, master_S);
  }
  parameters_.refresh_compute();
  tokens_since_ = steps_since_ = 0;
}

}  // namespace xffl::train
