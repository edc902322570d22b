// The job's validation sets and how the model does on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stop_agreement.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

class Validation {
 public:
  /// `spec`, `context` and `pipeline` must outlive this object. Throws what Dataset does.
  Validation(const job::JobSpec& spec, const JobContext& context, const ModelLimits& limits,
             Pipeline& pipeline);

  size_t size() const { return sets_.size(); }

  /// Mean losses in the order of the sets, on all ranks; collective. Fewer of them when told to
  /// finish. Throws kFailed when one is not finite. `when` goes to the log: "before", "amid",
  /// "after".
  std::vector<double> measure(const LoadedModel& model, std::string_view when, StopAgreement& stop,
                              int64_t steps_done) const;

  /// What the report says of the sets measured after training.
  std::vector<job::ValidationResult> results(const std::vector<double>& before,
                                             const std::vector<double>& after) const;

 private:
  void tell(size_t index, std::string_view when, double nll, int64_t tokens) const;

  const job::JobSpec& spec_;
  const JobContext& context_;
  Pipeline& pipeline_;
  std::vector<Dataset> sets_;
};

}  // namespace xffl::train
