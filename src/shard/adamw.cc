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

Stored stored(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return {x.mutable_data_ptr<float>(), nullptr};
  return {nullptr, static_cast<uint16_t*>(x.mutable_data_ptr())};
}

uint16_t* bits_of(const at::Tensor& x) {
  return x.defined() ? static_cast<uint16_t*>(x.mutable_data_ptr()) : nullptr;
}

// Whether the kernel can write the copy along with float32 masters.
bool is_written_along(const UnitState& state) {
  return state.copy_S.defined() && state.copy_S.is_cpu() &&
         state.copy_S.scalar_type() == at::kBFloat16 && state.master_S.scalar_type() == at::kFloat;
}

}  // namespace

Adamw::Adamw(FlatParameters& parameters, const AdamwOptions& options)
    : parameters_(parameters), options_(options) {
  for (const UnitState& state : parameters_.states()) {
    const auto moment = state.master_S.options().dtype(options.moment_dtype);
    first_moments_.push_back(at::zeros_like(state.master_S, moment));
    second_moments_.push_back(at::zeros_like(state.master_S, moment));
  }
}

bool Adamw::step_on_cpu(double learning_rate, double gradient_factor) {
  const std::vector<UnitState>& states = parameters_.states();
  if (!states.front().master_S.is_cpu()) return false;
  parameters_.finish_gathers();
  bool fresh = true;
  for (size_t u = 0; u < states.size(); ++u) {
    const UnitState& state = states[u];
    const bool along = is_written_along(state);
    const AdamwBuffers buffers{.master = stored(state.master_S),
                               .copy = along ? bits_of(state.copy_S) : nullptr,
                               .remainder = bits_of(state.remainder_S),
                               .gradient = stored(state.gradient_S),
                               .first = stored(first_moments_[u]),
                               .second = stored(second_moments_[u])};
    fresh = fresh && (!state.copy_S.defined() || along);
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
  throw Error(ErrorKind::kInternal, "shard::Adamw: no kernel of this build steps on " +
                                        parameters_.states().front().master_S.device().str());
}

}  // namespace xffl::shard
