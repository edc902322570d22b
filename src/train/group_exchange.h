// The groups of a job's ranks, and the exchange between the groups: weights every few steps (local
// SGD), or gradients before each step.
//
// The mean of weights is computed as in aggregate/: the exchange sums products with the groups'
// tokens (or 1) in float64, in the order of the groups, divides the sum, and rounds to float32
// once. One job of G groups therefore gives the model that the coordinator computes from G
// facilities' float32 weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

/// Divides the ranks of a job into groups of neighbours. Each group trains its own model between
/// two exchanges (local SGD).
class JobGroups {
 public:
  /// Collective over `world`, which must outlive this object. Throws kConfig unless `count` divides
  /// the world size.
  JobGroups(comm::Group& world, int64_t count);

  int count() const { return across().size(); }
  /// The index of this rank's group.
  int index() const { return across().rank(); }
  /// The ranks of this rank's group; the world if there is one group.
  comm::Group& inner() const { return inner_ == nullptr ? world_ : *inner_; }
  /// The ranks with the same index in their groups, in the order of the groups.
  comm::Group& across() const { return *across_; }

 private:
  comm::Group& world_;
  std::unique_ptr<comm::Group> inner_, across_;
};

/// One kind of buffer, such as the first moments. It holds a rank's part of each unit, with the
/// shape of the unit's masters.
struct UnitBuffers {
  std::string name;
  std::vector<at::Tensor> units;         // float32 or bfloat16
  std::vector<at::Tensor> remainders{};  // of split masters
};

/// The outer optimizer of the groups inside one job. The coordinator's server optimizer, which
/// works between facilities, is in aggregate/.
///
/// "average" takes the mean of the groups' models (local SGD: Stich, 2019). The other kinds take a
/// step along the pseudo-gradient, which is the model at the last exchange (the anchor) minus the
/// mean. The step is that of torch.optim.SGD or torch.optim.Adam (DiLoCo: Douillard et al., 2023).
class GroupOuterOptimizer {
 public:
  /// Copies the current model as the anchor, except for "average", which keeps nothing.
  GroupOuterOptimizer(const shard::FlatParameters& parameters, const job::Outer& settings);

  /// Begins an exchange, before the updates of its units.
  void begin_step() { num_steps_ += 1; }
  /// Replaces the mean in `master_S`, a unit's masters, by the new model.
  void update(size_t unit, at::Tensor master_S);

  /// The buffers of all units, by name ("anchor", "outer_first", "outer_second"), for checkpoints.
  const std::vector<UnitBuffers>& buffers() const { return buffers_; }
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }

 private:
  void sgd(at::Tensor anchor_S, at::Tensor momentum_S, at::Tensor gradient_S) const;
  void adam(at::Tensor anchor_S, at::Tensor first_S, at::Tensor second_S,
            at::Tensor gradient_S) const;

  job::Outer settings_;
  std::vector<UnitBuffers> buffers_;
  int64_t num_steps_ = 0;
};

class GroupExchange {
 public:
  /// All arguments must outlive this object. With one group the object exchanges nothing.
  GroupExchange(const JobGroups& groups, shard::FlatParameters& parameters,
                const job::RankGroups& settings, at::Device device);

  /// Replaces the gradients by their mean over the groups, weighted equally or by `tokens`, the
  /// target tokens of each group's batch; collective. Does nothing if the groups exchange weights.
  void exchange_gradients(int64_t tokens);

  /// Exchanges the weights every `interval` steps; collective. `tokens` are this group's tokens of
  /// the step, 0 if the step was skipped.
  void after_step(int64_t steps_done, int64_t tokens);
  /// Exchanges the steps since the last exchange, so that all groups have one model; collective.
  void finish();

  GroupOuterOptimizer& outer() { return outer_; }
  /// The tokens and steps of this group since the last exchange, for checkpoints.
  int64_t tokens_since() const { return tokens_since_; }
  int64_t steps_since() const { return steps_since_; }
  void set_tokens_since(int64_t tokens) { tokens_since_ = tokens; }
  void set_steps_since(int64_t steps) { steps_since_ = steps; }

 private:
  struct Weights {
    double mine = 1;
    double total = 1;
  };
  Weights weights(int64_t tokens) const;
  void mean_over_groups(at::Tensor values_S, double weight, double total,
                        at::ScalarType sum_dtype) const;
  void exchange_weights();
  bool exchanges(job::Exchange kind) const {
    return groups_.count() > 1 && settings_.exchange == kind;
  }

  const JobGroups& groups_;
  shard::FlatParameters& parameters_;
  job::RankGroups settings_;
  at::Device device_;
  GroupOuterOptimizer outer_;
  int64_t tokens_since_ = 0;
  int64_t steps_since_ = 0;
};

}  // namespace xffl::train
