#include "xffl/shard/adamw.h"

#include <torch/types.h>

namespace xffl::shard {

Adamw::Adamw(FlatParameters& parameters, const AdamwOptions& options)
    : parameters_(parameters), options_(options) {
  for (const FlatUnit& unit : parameters_.units()) {
    first_moments_.push_back(at::zeros_like(unit.master_P));
    second_moments_.push_back(at::zeros_like(unit.master_P));
  }
  num_steps_ = at::zeros({}, parameters_.units().front().master_P.options());
}

void Adamw::step(double learning_rate) {
  num_steps_.add_(1);
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> masters, gradients, first, second;
    for (size_t u = 0; u < parameters_.units().size(); ++u) {
      const FlatUnit& unit = parameters_.units()[u];
      const int64_t begin = decay ? 0 : unit.num_decayed;
      const int64_t count = (decay ? unit.num_decayed : unit.master_P.numel()) - begin;
      if (count == 0) continue;
      masters.push_back(unit.master_P.narrow(0, begin, count));
      gradients.push_back(unit.gradient_P.narrow(0, begin, count));
      first.push_back(first_moments_[u].narrow(0, begin, count));
      second.push_back(second_moments_[u].narrow(0, begin, count));
    }
    if (masters.empty()) continue;
    const std::vector<at::Tensor> steps(masters.size(), num_steps_);
    at::_fused_adamw_(masters, gradients, first, second, {}, steps, learning_rate, options_.beta1,
                      options_.beta2, decay ? options_.weight_decay : 0.0, options_.epsilon, false,
                      false);
  }
  parameters_.refresh_compute();
}

}  // namespace xffl::shard
