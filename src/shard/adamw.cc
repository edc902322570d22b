#include "xffl/shard/adamw.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cmath>
#include <string>

#include "cpu_adamw.h"
#include "gpu_kernels.h"
#include "xffl/base/error.h"

namespace xffl::shard {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread

AdamwFactors factors_of(const AdamwOptions& options, double learning_rate, double gradient_factor,
                        int64_t num_steps, bool decay) {
  const auto t = static_cast<double>(num_steps);
  const auto f = [](double value) { return static_cast<float>(value); };
  return {f(gradient_factor),
          f(1 - options.beta1),
          f(1 - options.beta2),
          f(options.beta2),
          f(decay ? learning_rate * options.weight_decay : 0.0),
          f(learning_rate / (1 - std::pow(options.beta1, t))),
          f(std::sqrt(1 - std::pow(options.beta2, t))),
          f(options.epsilon)};
}

// The copy that the kernel can write along with the masters, if any.
uint16_t* bf16_copy(const UnitState& state) {
  if (!state.copy_S.defined() || !state.copy_S.is_cpu() ||
      state.copy_S.scalar_type() != at::kBFloat16)
    return nullptr;
  return static_cast<uint16_t*>(state.copy_S.mutable_data_ptr());
}

}  // namespace

Adamw::Adamw(FlatParameters& parameters, const AdamwOptions& options)
    : parameters_(parameters), options_(options) {
  for (const UnitState& state : parameters_.states()) {
    first_moments_.push_back(at::zeros_like(state.master_S));
    second_moments_.push_back(at::zeros_like(state.master_S));
  }
}

bool Adamw::step_on_cpu(double learning_rate, double gradient_factor) {
  const std::vector<UnitState>& states = parameters_.states();
  if (!states.front().master_S.is_cpu()) return false;
  parameters_.finish_gathers();
  bool fresh = true;
  for (size_t u = 0; u < states.size(); ++u) {
    const UnitState& state = states[u];
    const AdamwBuffers buffers{state.master_S.mutable_data_ptr<float>(),
                               state.gradient_S.const_data_ptr<float>(),
                               first_moments_[u].mutable_data_ptr<float>(),
                               second_moments_[u].mutable_data_ptr<float>(), bf16_copy(state)};
    fresh = fresh && (!state.copy_S.defined() || buffers.copy_bf16 != nullptr);
    for (const bool decay : {true, false}) {
      const AdamwFactors factors =
          factors_of(options_, learning_rate, gradient_factor, num_steps_, decay);
      at::parallel_for(
          decay ? 0 : state.num_decayed, decay ? state.num_decayed : state.master_S.numel(), kGrain,
          [&](int64_t begin, int64_t end) { adamw_on_cpu(buffers, begin, end, factors); });
    }
  }
  parameters_.refresh_compute(fresh);
  return true;
}

bool Adamw::step_on_gpu(double learning_rate, double gradient_factor) {
  const std::vector<UnitState>& states = parameters_.states();
  if (!states.front().master_S.is_cuda()) return false;
  parameters_.finish_gathers();
  for (size_t u = 0; u < states.size(); ++u) {
    const bool done = gpu::adamw(states[u], first_moments_[u], second_moments_[u], options_,
                                 learning_rate, gradient_factor, num_steps_);
    if (done) continue;
    if (u == 0) return false;
    throw Error(ErrorKind::kInternal,
                "shard::Adamw: unit " + std::to_string(u) + " lies elsewhere than those before it");
  }
  parameters_.refresh_compute(true);
  return true;
}

void Adamw::step(double learning_rate, double gradient_factor) {
  num_steps_ += 1;
  if (step_on_cpu(learning_rate, gradient_factor) || step_on_gpu(learning_rate, gradient_factor))
    return;
  if (gradient_factor != 1) parameters_.scale_gradients(gradient_factor);
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
