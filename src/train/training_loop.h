// The steps of a job, with validation, metrics and checkpoints between them.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "checkpoints.h"
#include "group_exchange.h"
#include "metrics.h"
#include "rank_sync.h"
#include "trainer.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_spec.h"
#include "xffl/tokens/sampler.h"
#include "xffl/train/dataset.h"
#include "xffl/train/evaluate.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/run_job.h"

namespace xffl::train {

/// The learning rate of the 0-based global step: a warm-up of peak * step / warmup_steps, then a
/// constant, linear, cosine or wsd schedule from the peak to peak * min_ratio at total_steps and
/// later. The formulas are those of Hugging Face's get_*_schedule_with_warmup, so the first step of
/// a warm-up has the rate 0. total_steps 0 means the end of this job.
double learning_rate(const job::TrainingSpec& training, int64_t step);

class TrainingLoop {
 public:
  /// All arguments must outlive the loop.
  TrainingLoop(const job::JobSpec& spec, const JobContext& context, const JobGroups& groups,
               Pipeline& pipeline, LoadedModel& model, const TrainingData& data,
               const Validation& validation, StopControl& stop);

  /// Resumes from the newest checkpoint of an earlier attempt, or of this attempt before a requeue;
  /// collective. Without a checkpoint loads the previous round's optimizer state, if the job keeps
  /// that state. Returns the checkpoint's validation scores before training; empty without a
  /// checkpoint.
  Scores resume();

  /// Trains until the job is complete or should finish early; collective. On return all groups have
  /// one model, unless the job stops with a checkpoint.
  void run(const Scores& before);

  /// Whether all steps are done, or max_tokens or early stopping ended the training.
  bool complete() const;
  /// Counts of the steps of this attempt and of the attempts that it resumed.
  const job::JobReport& report() const { return report_; }

  /// The current model's validation scores; empty if no validation followed the model's last step.
  Scores scores_now() const {
    return state_.measured_at == report_.steps ? state_.scores : Scores();
  }

  /// Saves a checkpoint unless the last step has one; collective.
  void save_if_unsaved();
  /// Saves the optimizer state for the next round; collective.
  void save_optimizer() const { checkpoints_.save_optimizer(); }
  /// Removes all checkpoints. One rank calls the function after the job's result is written.
  void clear_checkpoints() const { checkpoints_.clear(); }

 private:
  bool first_rank() const { return context_.group.rank() == 0; }
  void log_stage(double waited_seconds) const;
  void step(tokens::Sampler& mine, tokens::Sampler& whole_batch);
  void record(int64_t step, const StepResult& result, double learning_rate, double seconds,
              size_t batch_size);
  void validate_if_due();
  void save_if_best(double loss);
  /// Logs an error that does not stop training; rethrows kCancelled.
  void log_and_continue(const char* event, const std::exception& error) const;
  void restore_best();
  bool stopped_improving() const;
  void save();
  void save_if_due();

  const job::JobSpec& spec_;
  const JobContext& context_;
  const JobGroups& groups_;
  Pipeline& pipeline_;
  LoadedModel& model_;
  const TrainingData& data_;
  const Validation& validation_;
  StopControl& stop_;
  Trainer trainer_;
  Checkpoints checkpoints_;
  std::optional<MetricsFile> metrics_;
  std::optional<ProgressLine> progress_;
  TrainingState state_;  // its report has no key until the loop saves it
  job::JobReport& report_ = state_.report;
  int64_t last_saved_ = -1;  // steps of the newest checkpoint
  bool stopped_by_validation_ = false;
};

}  // namespace xffl::train
