// The job's validation sets, and the model's losses on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rank_sync.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

class Validation {
 public:
  /// `spec`, `context` and `pipeline` must outlive this object. Throws the errors of Dataset.
  Validation(const job::JobSpec& spec, const JobContext& context, const ModelLimits& limits,
             Pipeline& pipeline);

  size_t size() const { return sets_.size(); }

  /// Mean losses in the order of the sets, on all ranks; collective. Fewer losses if the job should
  /// finish early. Throws kFailed if a loss is not finite. `when` goes to the log: "before",
  /// "mid-training", "after".
  std::vector<double> measure(const LoadedModel& model, std::string_view when, StopControl& stop,
                              int64_t steps_done) const;

  /// The report's entries for the sets measured after training.
  std::vector<job::ValidationResult> results(const std::vector<double>& before,
                                             const std::vector<double>& after) const;

 private:
  void log_result(size_t index, std::string_view when, double nll, int64_t tokens) const;

  const job::JobSpec& spec_;
  const JobContext& context_;
  Pipeline& pipeline_;
  std::vector<Dataset> sets_;
};

}  // namespace xffl::train
