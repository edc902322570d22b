// The steps of a job: what they have done so far, told, and kept in checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "job_state.h"
#include "metrics.h"
#include "stop_agreement.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/tokens/sampler.h"
#include "xffl/train/dataset.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/run_job.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

class TrainingLoop {
 public:
  /// All of these must outlive the loop.
  TrainingLoop(const job::JobSpec& spec, const JobContext& context, LoadedModel& model,
               const Dataset& data, StopAgreement& stop);

  /// Goes on from the newest checkpoint of an earlier attempt, or of this one before a requeue;
  /// collective. Returns the losses measured before training then, and nothing when there is none.
  std::vector<double> resume();

  /// Trains until all steps are done or the job is told to finish; collective.
  void run(const std::vector<double>& nll_before);

  /// Of the steps that are done, in this attempt and in those before it.
  const job::JobReport& report() const { return report_; }

  /// A checkpoint of all that is done; collective.
  void save_if_unsaved(const std::vector<double>& nll_before);
  /// Removes all checkpoints; by one rank, when the job's result is there.
  void clear_checkpoints() const { store_.clear(); }

 private:
  bool first_rank() const { return context_.group.rank() == 0; }
  void step(tokens::Sampler& mine, tokens::Sampler& whole_batch);
  int64_t global_tokens(tokens::Sampler& whole_batch, int64_t step) const;
  void record(int64_t step, const StepResult& result, double learning_rate, double seconds);
  void save(const std::vector<double>& nll_before);
  void save_if_due(const std::vector<double>& nll_before);

  const job::JobSpec& spec_;
  const JobContext& context_;
  const Dataset& data_;
  StopAgreement& stop_;
  Trainer trainer_;
  JobStateStore store_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
  job::JobReport report_;
  int64_t last_saved_ = -1;  // steps of the newest checkpoint
};

}  // namespace xffl::train
