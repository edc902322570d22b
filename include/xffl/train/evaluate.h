// Negative log-likelihood and token accuracy of data sets, over all ranks: for the evaluate
// command, and for a job's validation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "xffl/comm/group.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

struct JobContext;
class StopControl;

struct Evaluation {
  int64_t tokens = 0;  // predicted tokens
  double nll_sum = 0;  // nats
  int64_t hits = 0;    // predicted tokens to which the model gave the largest logit
  /// The mean NLL of each sequence in file order; empty for a sequence without targets.
  std::vector<std::optional<double>> per_sequence;

  double nll() const { return tokens == 0 ? 0.0 : nll_sum / static_cast<double>(tokens); }
  double accuracy() const {
    return tokens == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(tokens);
  }
};

/// Evaluates a data set; collective. Each data rank sends every size()-th batch through its
/// pipeline. Sums are in float64 and equal on all ranks; between world sizes the NLL differs by
/// rounding only. Hits are whole numbers. Returns non-finite values instead of throwing. If set,
/// evaluate() calls `should_stop` before every batch (in a pipeline every few batches, to keep the
/// stages busy), on all ranks at the same batch. `should_stop` must return the same value on all
/// ranks; true ends the evaluation without a result.
std::optional<Evaluation> evaluate(const LoadedModel& model, const Dataset& data,
                                   int64_t batch_size, Pipeline& pipeline, at::Device device,
                                   const std::function<bool()>& should_stop = nullptr);

/// A model's mean NLL and accuracy on validation sets, in the order of the sets.
struct Scores {
  std::vector<double> nll, accuracy;

  bool empty() const { return nll.empty(); }
  size_t size() const { return nll.size(); }
};

/// The job's validation sets, and the model's scores on them.
class Validation {
 public:
  /// `spec`, `context` and `pipeline` must outlive this object. Throws the errors of Dataset.
  Validation(const job::JobSpec& spec, const JobContext& context, const ModelLimits& limits,
             Pipeline& pipeline);

  size_t size() const { return sets_.size(); }

  /// Returns the scores on all ranks; collective. Returns fewer scores if the job should finish
  /// early. Throws kFailed if a loss is not finite. The log shows `when`: "before", "mid-training"
  /// or "after".
  Scores measure(const LoadedModel& model, std::string_view when, StopControl& stop,
                 int64_t steps_done) const;

  /// The time of all calls of measure() of this process.
  double seconds() const { return seconds_; }

  /// The report's entries for the sets measured before training; `after` may lack the last ones.
  std::vector<job::ValidationResult> results(const Scores& before, const Scores& after) const;

 private:
  void log_result(size_t index, std::string_view when, const Evaluation& result) const;

  const job::JobSpec& spec_;
  const JobContext& context_;
  Pipeline& pipeline_;
  std::vector<Dataset> sets_;
  mutable double seconds_ = 0;
};

}  // namespace xffl::train
