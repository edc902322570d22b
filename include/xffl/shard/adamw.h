// AdamW over flat buffers: Adam (Kingma & Ba, 2015) with bias correction and decoupled weight decay
// (Loshchilov & Hutter, 2019), equal to torch.optim.AdamW.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "xffl/shard/flat_parameters.h"

namespace xffl::shard {

struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

class Adamw {
 public:
  /// The state, two float32 buffers per unit, starts at zero. `parameters` must outlive this
  /// object.
  Adamw(FlatParameters& parameters, const AdamwOptions& options);

  /// Updates the masters from the gradients, then the compute copies.
  void step(double learning_rate);

 private:
  FlatParameters& parameters_;
  AdamwOptions options_;
  std::vector<at::Tensor> first_moments_;
  std::vector<at::Tensor> second_moments_;
  at::Tensor num_steps_;
};

}  // namespace xffl::shard
