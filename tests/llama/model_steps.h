// The steps of a whole model, for tests.
#pragma once

#include "xffl/llama/model.h"

namespace xffl::llama {

/// Forward and backward: adds the gradients of scale * (sum of the labels' NLL) to the weights and
/// returns the sum of the NLL, a float64 scalar.
inline at::Tensor accumulate_gradients(Model& model, const at::Tensor& tokens_BT,
                                       const at::Tensor& labels_BT, double scale,
                                       const Documents& documents = {}) {
  Pass pass(model, tokens_BT, labels_BT, scale, documents);
  pass.forward({});
  pass.backward({});
  return pass.nll_sum();
}

inline at::Tensor nll(Model& model, const at::Tensor& tokens_BT, const at::Tensor& labels_BT,
                      const Documents& documents = {}) {
  return model.stage_nll({}, tokens_BT, labels_BT, documents);
}

/// Calls `body` for every weight.
template <class Body>
void for_weights(Model& model, const Body& body) {
  for (int unit = 0; unit < model.num_units(); ++unit)
    for (Weight& weight : model.weights(unit)) body(weight);
  for (Weight& weight : model.adapter_weights()) body(weight);
}
/// The next accumulate_gradients() overwrites the gradients.
inline void clear_gradients(Model& model) {
  for_weights(model, [](Weight& weight) { weight.clear(); });
}
/// Zeroes the gradients without an addition since clear_gradients().
inline void finish_gradients(Model& model) {
  for_weights(model, [](Weight& weight) { weight.finish(); });
}

}  // namespace xffl::llama
