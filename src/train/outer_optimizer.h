// What the mean of the groups' models does to the model that they began with.
//
// The pseudo-gradient is the model at the last exchange (the anchor) minus the mean: "average"
// takes the mean (local SGD: Stich, 2019), the others take a step along the pseudo-gradient, as
// torch.optim.SGD and torch.optim.Adam would (DiLoCo: Douillard et al., 2023).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "state_parts.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

class OuterOptimizer {
 public:
  /// The anchor is the model as it is now; "average" needs none and keeps nothing.
  OuterOptimizer(const shard::FlatParameters& parameters, const job::Outer& settings);

  /// To be called before the units' updates of an exchange.
  void begin_step() { num_steps_ += 1; }
  /// `master_S` of a unit holds the mean, and then the new model.
  void update(size_t unit, at::Tensor master_S);

  /// For saving and loading: what is kept of each unit, by name ("anchor", "outer_first",
  /// "outer_second").
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

}  // namespace xffl::train
