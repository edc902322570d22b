// The steps of a job: what they have done so far, told, and kept in checkpoints.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "group_exchange.h"
#include "job_groups.h"
#include "job_state.h"
#include "metrics.h"
#include "optimizer_state.h"
#include "stop_agreement.h"
#include "training_data.h"
#include "validation.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/tokens/sampler.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/run_job.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

class TrainingLoop {
 public:
  /// All of these must outlive the loop.
  TrainingLoop(const job::JobSpec& spec, const JobContext& context, const JobGroups& groups,
               Pipeline& pipeline, LoadedModel& model, const TrainingData& data,
               const Validation& validation, StopAgreement& stop);

  /// Goes on from the newest checkpoint of an earlier attempt, or of this one before a requeue,
  /// else with the optimizer's state of the round before, where it is kept; collective. Returns
  /// the losses that were measured before training with a checkpoint, else nothing.
  std::vector<double> resume();

  /// Trains until the job is complete or told to finish; collective. Then all groups have one
  /// model, unless a checkpoint is to be left.
  void run(const std::vector<double>& nll_before);

  /// All steps are done, or as many as max_tokens and early stopping allow.
  bool complete() const;
  /// Of the steps that are done, in this attempt and in those before it.
  const job::JobReport& report() const { return report_; }

  /// The validation losses of the model as it is, where it was measured after its last step.
  std::vector<double> losses_now() const {
    return state_.measured_at == report_.steps ? state_.losses : std::vector<double>();
  }

  /// A checkpoint of all that is done; collective.
  void save_if_unsaved();
  /// What the next round's optimizer begins with; collective.
  void keep_optimizer() const { optimizer_state_.save(); }
  /// Removes all checkpoints; by one rank, when the job's result is there.
  void clear_checkpoints() const { store_.clear(); }

 private:
  bool first_rank() const { return context_.group.rank() == 0; }
  void tell_stage(double waited_seconds) const;
  void step(tokens::Sampler& mine, tokens::Sampler& whole_batch);
  void record(int64_t step, const StepResult& result, double learning_rate, double seconds);
  void validate_if_due();
  void keep_if_best(double loss);
  /// Tells what a training can do without; a stop on request goes on up.
  void go_on_without(const char* event, const std::exception& error) const;
  void return_to_best();
  bool no_longer_improves() const;
  void save();
  void save_if_due();

  const job::JobSpec& spec_;
  const JobContext& context_;
  const JobGroups& groups_;
  Pipeline& pipeline_;
  LoadedModel& model_;
  const TrainingData& data_;
  const Validation& validation_;
  StopAgreement& stop_;
  Trainer trainer_;
  GroupExchange exchange_;
  JobStateStore store_;
  OptimizerState optimizer_state_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
  JobState state_;  // its report lacks the key until it is saved
  job::JobReport& report_ = state_.report;
  int64_t last_saved_ = -1;  // steps of the newest checkpoint
  bool stopped_by_validation_ = false;
};

}  // namespace xffl::train
