// FedProx's proximal term (Li et al., 2020): mu / 2 * |w - w_given|^2 beside the loss, so that a
// facility's training stays near the model that all were given.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "xffl/shard/flat_parameters.h"

namespace xffl::train {

class Proximal {
 public:
  /// Keeps a float32 copy of this rank's masters as they are now; with mu 0 nothing.
  /// `parameters` must outlive this object.
  Proximal(shard::FlatParameters& parameters, double mu);

  /// gradient += scale * mu * (master - given); after finish_gradients(), before the norm.
  void add_gradients(double scale);

 private:
  shard::FlatParameters& parameters_;
  double mu_;
  std::vector<at::Tensor> given_S_;  // by unit
};

}  // namespace xffl::train
