// The outer optimizer of the groups inside one job; the coordinator's server optimizer, which works
// between facilities, is in aggregate/.
//
// "average" takes the mean of the groups' models (local SGD: Stich, 2019). The other kinds take a
// step along the pseudo-gradient, the model at the last exchange (the anchor) minus the mean, as
// torch.optim.SGD and torch.optim.Adam do (DiLoCo: Douillard et al., 2023).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint_files.h"
#include "xffl/job/job_spec.h"
#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

class GroupOuterOptimizer {
 public:
  /// Copies the current model as the anchor, except for "average", which keeps nothing.
  GroupOuterOptimizer(const shard::FlatParameters& parameters, const job::Outer& settings);

  /// Begins an exchange, before the updates of its units.
  void begin_step() { num_steps_ += 1; }
  /// Replaces the mean in `master_S`, a unit's masters, by the new model.
  void update(size_t unit, at::Tensor master_S);

  /// For checkpoints: the buffers of all units, by name ("anchor", "outer_first", "outer_second").
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
