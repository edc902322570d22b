#include "unit_hooks.h"

#include <torch/types.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace xffl::train {
namespace {

// What a unit has in one of the two sets of buffers.
struct Share {
  shard::FlatParameters* parameters = nullptr;
  bool trained = false;
  std::vector<std::pair<llama::Weight*, size_t>> weights;  // and their indices there
};
using Shares = std::vector<std::vector<Share>>;  // by unit

void add_to_shares(Shares& shares, shard::FlatParameters& parameters, bool trained,
                   std::span<llama::Weight* const> weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    std::vector<Share>& unit = shares[static_cast<size_t>(parameters.layout().places()[i].unit)];
    if (unit.empty() || unit.back().parameters != &parameters)
      unit.push_back({&parameters, trained, {}});
    unit.back().weights.emplace_back(weights[i], i);
  }
}

// The weights of `names`, in their order.
std::vector<llama::Weight*> weights_of(llama::Model& model,
                                       const std::vector<llama::ParameterSpec>& all,
                                       const std::vector<llama::ParameterSpec>& wanted) {
  std::vector<llama::Weight*> weights;
  size_t i = 0;
  for (const llama::ParameterSpec& spec : wanted) {
    while (all[i].name != spec.name) ++i;
    weights.push_back(&model.weights(spec.unit)[i - model.unit_begin(spec.unit)]);
  }
  return weights;
}

Shares make_shares(LoadedModel& loaded) {
  const std::vector<llama::ParameterSpec> all = llama::parameter_specs(loaded.config);
  Shares shares(static_cast<size_t>(loaded.model->num_units()));
  std::vector<llama::Weight*> trained;
  if (loaded.lora) {
    for (llama::Weight& weight : loaded.model->adapter_weights()) trained.push_back(&weight);
  } else {
    trained = weights_of(*loaded.model, all, loaded.specs);
  }
  add_to_shares(shares, *loaded.parameters, true, trained);
  if (loaded.frozen)
    add_to_shares(shares, *loaded.frozen, false,
                  weights_of(*loaded.model, all, loaded.frozen_specs));
  return shares;
}

bool has_unit(const shard::FlatParameters& parameters, int unit) {
  return unit >= 1 && unit < parameters.num_units() &&
         parameters.layout().units()[static_cast<size_t>(unit)].size > 0;
}

}  // namespace

llama::UnitHooks make_hooks(LoadedModel& loaded) {
  const auto shares = std::make_shared<const Shares>(make_shares(loaded));
  const auto enter = [shares](int unit, llama::UnitUse use) {
    for (const Share& share : (*shares)[static_cast<size_t>(unit)]) {
      shard::FlatParameters& parameters = *share.parameters;
      if (use.values) {
        parameters.gather(unit);
        // Ahead: the next block forward or backward. The embedding's values are not read backward.
        const int next = use.gradients ? unit - 1 : unit + 1;
        if (has_unit(parameters, next)) parameters.prefetch(next);
        for (const auto& [weight, index] : share.weights) weight->value = parameters.compute(index);
      }
      if (!use.gradients || !share.trained) continue;
      const bool anew = parameters.open_gradients(unit);
      for (const auto& [weight, index] : share.weights) {
        weight->gradient = parameters.gradient(index);
        if (anew) weight->clear();
      }
    }
  };
  const auto leave = [shares](int unit, llama::UnitUse use) {
    for (const Share& share : (*shares)[static_cast<size_t>(unit)]) {
      if (use.gradients && share.trained) {
        for (const auto& [weight, index] : share.weights) weight->finish();
        share.parameters->close_gradients(unit);
      }
      if (use.values) share.parameters->release(unit);
    }
  };
  return {enter, leave};
}

}  // namespace xffl::train
