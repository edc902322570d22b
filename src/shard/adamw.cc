#include "xffl/shard/adamw.h"

#include <torch/types.h>

namespace xffl::shard {

Adamw::Adamw(FlatParameters& parameters, const AdamwOptions& options)
    : parameters_(parameters), options_(options) {
  for (const UnitState& state : parameters_.states()) {
    first_moments_.push_back(at::zeros_like(state.master_S));
    second_moments_.push_back(at::zeros_like(state.master_S));
  }
}

void Adamw::step(double learning_rate) {
  num_steps_ += 1;
  const std::vector<UnitState>& states = parameters_.states();
  const at::Tensor count_so_far = at::full({}, static_cast<double>(num_steps_),
                                           states.front().master_S.options().pinned_memory(false));
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> masters, gradients, first, second;
    for (size_t u = 0; u < states.size(); ++u) {
      const int64_t begin = decay ? 0 : states[u].num_decayed;
      const int64_t count = (decay ? states[u].num_decayed : states[u].master_S.numel()) - begin;
      if (count == 0) continue;
      masters.push_back(states[u].master_S.narrow(0, begin, count));
      gradients.push_back(states[u].gradient_S.narrow(0, begin, count));
      first.push_back(first_moments_[u].narrow(0, begin, count));
      second.push_back(second_moments_[u].narrow(0, begin, count));
    }
    if (masters.empty()) continue;
    const std::vector<at::Tensor> steps(masters.size(), count_so_far);
    at::_fused_adamw_(masters, gradients, first, second, {}, steps, learning_rate, options_.beta1,
                      options_.beta2, decay ? options_.weight_decay : 0.0, options_.epsilon, false,
                      false);
  }
  parameters_.refresh_compute();
}

}  // namespace xffl::shard
