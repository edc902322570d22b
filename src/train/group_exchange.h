// What the groups of a job give each other: their weights every so many steps, or their gradients
// before each step.
//
// Means of weights are those of aggregate/: products with the groups' tokens (or 1) and their sum
// in float64, in the order of the groups, divided and rounded to float32 once. So one job of G
// groups makes the model that the coordinator makes of G facilities' float32 weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "job_groups.h"
#include "outer_optimizer.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

class GroupExchange {
 public:
  /// All of these must outlive this object. With one group nothing is exchanged.
  GroupExchange(const JobGroups& groups, shard::FlatParameters& parameters,
                const job::RankGroups& settings, at::Device device);

  /// The gradients become their mean over the groups, weighted by `tokens` of each group's batch or
  /// equally; collective. Does nothing where weights are exchanged.
  void exchange_gradients(int64_t tokens);

  /// After a step that trained on so many tokens of this group (none where it was skipped):
  /// exchanges the weights every `interval` steps; collective.
  void after_step(int64_t steps_done, int64_t tokens);
  /// What was done since the last exchange is exchanged, so that all groups have one model;
  /// collective.
  void finish();

  /// The sums and means over all groups of what a step of each gave; collective.
  StepResult over_groups(const StepResult& mine) const;

  OuterOptimizer& outer() { return outer_; }
  /// Of this group since the last exchange; for saving and loading.
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
  bool exchanges(job::Exchange what) const {
    return groups_.count() > 1 && settings_.exchange == what;
  }

  const JobGroups& groups_;
  shard::FlatParameters& parameters_;
  job::RankGroups settings_;
  at::Device device_;
  OuterOptimizer outer_;
  int64_t tokens_since_ = 0;
  int64_t steps_since_ = 0;
};

}  // namespace xffl::train
