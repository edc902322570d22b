// The exchange between the groups of a job: weights every few steps (local SGD), or gradients
// before each step.
//
// The mean of weights is computed as in aggregate/: products with the groups' tokens (or 1) are
// summed in float64, in the order of the groups, divided, and rounded to float32 once. One job of G
// groups therefore gives the model that the coordinator computes from G facilities' float32
// weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "group_outer_optimizer.h"
#include "job_groups.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

class GroupExchange {
 public:
  /// All arguments must outlive this object. With one group nothing is exchanged.
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
  /// Tokens and steps of this group since the last exchange; for checkpoints.
  int64_t tokens_since() const { return tokens_since_; }
  int64_t steps_since() const { return steps_since_; }
  void set_since(int64_t tokens, int64_t steps) {
    tokens_since_ = tokens;
    steps_since_ = steps;
  }

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
