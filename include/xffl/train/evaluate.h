// Negative log-likelihood of a data set, over all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

struct Evaluation {
  int64_t tokens = 0;  // predicted tokens
  double nll_sum = 0;  // nats
  /// Mean NLL of each sequence in file order; empty for a sequence without targets.
  std::vector<std::optional<double>> per_sequence;

  double nll() const { return tokens == 0 ? 0.0 : nll_sum / static_cast<double>(tokens); }
};

/// Evaluates a data set; collective. Each data rank sends every size()-th batch through its
/// pipeline. Sums are in float64 and equal on all ranks; between world sizes they differ by
/// rounding only. Non-finite values are returned, not thrown. If set, `should_stop` is called
/// before every batch (in a pipeline every few batches, to keep the stages busy), on all ranks at
/// the same batch, and must return the same value on all ranks; true ends the evaluation without a
/// result.
std::optional<Evaluation> evaluate(const LoadedModel& model, const Dataset& data,
                                   int64_t batch_size, Pipeline& pipeline, at::Device device,
                                   const std::function<bool()>& should_stop = nullptr);

}  // namespace xffl::train
