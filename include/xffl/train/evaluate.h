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
  /// Mean NLL of each sequence in file order; empty for a sequence of one token, which predicts
  /// none.
  std::vector<std::optional<double>> per_sequence;

  double nll() const { return tokens == 0 ? 0.0 : nll_sum / static_cast<double>(tokens); }
};

/// Each data rank takes every size()-th batch, which goes through the stages of its pipeline; sums
/// are in float64 and equal on all ranks, and between world sizes up to rounding. Non-finite values
/// are returned, not thrown.
/// `should_stop`, when given, is asked before every batch (in a pipeline, every few batches, so
/// that its stages work at once), on all ranks at the same one: true, the same on all, ends it
/// without a result.
std::optional<Evaluation> evaluate(const LoadedModel& model, const Dataset& data,
                                   int64_t batch_size, Pipeline& pipeline, at::Device device,
                                   const std::function<bool()>& should_stop = nullptr);

}  // namespace xffl::train
