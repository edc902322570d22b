#include "training_loop.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>

#include "epochs.h"
#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/device.h"

namespace xffl::train {
namespace {

// Counts the targets of a batch. Every rank knows its group's whole batch, so the ranks need no
// communication.
int64_t count_targets(const Dataset& data, const std::vector<uint64_t>& indices) {
  int64_t total = 0;
  for (const uint64_t index : indices) total += data.num_targets(index);
  return total;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double learning_rate(const job::TrainingSpec& training, int64_t step) {
  const job::Schedule& schedule = training.schedule;
  const double peak = training.learning_rate;
  if (step < schedule.warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  const int64_t total =
      schedule.total_steps > 0 ? schedule.total_steps : training.first_step + training.steps;
  int64_t begin = schedule.warmup_steps;  // of the decay
  if (schedule.kind == job::ScheduleKind::kWsd)
    begin = std::max(begin, total - std::lround(schedule.decay_ratio * static_cast<double>(total)));
  const double length = static_cast<double>(std::max<int64_t>(1, total - begin));
  const double progress = std::clamp(static_cast<double>(step - begin) / length, 0.0, 1.0);
  double ratio = 1.0;
  if (schedule.kind == job::ScheduleKind::kLinear || schedule.kind == job::ScheduleKind::kWsd)
    ratio = 1.0 - progress;
  if (schedule.kind == job::ScheduleKind::kCosine)
    ratio = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * ratio);
}

TrainingLoop::TrainingLoop(const job::JobSpec& spec, const JobContext& context,
                           const JobGroups& groups, Pipeline& pipeline, LoadedModel& model,
                           const TrainingData& data, const Validation& validation,
                           StopControl& stop)
    : spec_(spec),
      context_(context),
      groups_(groups),
      pipeline_(pipeline),
      model_(model),
      data_(data),
      validation_(validation),
      stop_(stop),
      trainer_(model, spec.training, groups, pipeline, context.device),
      checkpoints_(spec, context.group, context.device, model, trainer_, groups) {}

Scores TrainingLoop::resume() {
  if (!checkpoints_.load(state_)) {
    report_.optimizer_lost = checkpoints_.load_optimizer();
    return {};
  }
  last_saved_ = report_.steps;
  if (first_rank()) log::info("resumed from a checkpoint", {{"steps", report_.steps}});
  return state_.before;
}

bool TrainingLoop::complete() const {
  const job::TrainingSpec& training = spec_.training;
  return report_.steps >= training.steps ||
         (training.max_tokens > 0 && report_.tokens >= training.max_tokens) ||
         stopped_by_validation_ || stopped_improving();
}

bool TrainingLoop::stopped_improving() const {
  const int64_t patience = spec_.training.early_stop_patience;
  return patience > 0 && state_.worse_validations >= patience;
}

void TrainingLoop::run(const Scores& before) {
  const job::TrainingSpec& training = spec_.training;
  const auto batch_size = static_cast<uint64_t>(training.batch_size);
  const comm::Group& data_ranks = pipeline_.data();
  tokens::Sampler mine(data_.size(), batch_size, training.seed, data_ranks.rank(),
                       data_ranks.size());
  tokens::Sampler whole_batch(data_.size(), batch_size, training.seed, 0, 1);
  if (report_.steps == 0 && !before.empty()) state_.best_validation = mean_of(before.nll);
  state_.before = before;
  if (first_rank()) {
    metrics_.emplace(spec_.metrics_path, training.first_step + report_.steps);
    progress_.emplace(training.steps, true);
  }
  const double waited_before = pipeline_.seconds_waited();
  // If an attempt finishes early during validation, the next attempt does the validation.
  if (report_.steps > 0 && state_.measured_at != report_.steps) validate_if_due();
  while (!complete() && !stop_.should_finish(report_.steps)) {
    step(mine, whole_batch);
    validate_if_due();
    save_if_due();
  }
  log_stage(pipeline_.seconds_waited() - waited_before);
  if (stopped_improving()) restore_best();
  if (complete() || !stops_with_checkpoint(spec_)) trainer_.exchange().finish();
}

void TrainingLoop::log_and_continue(const char* event, const std::exception& error) const {
  const Error ours = translated(error);
  if (ours.kind() == ErrorKind::kCancelled) throw ours;
  if (first_rank()) log::warning(event, {{"problem", ours.what()}});
}

void TrainingLoop::restore_best() {
  stopped_by_validation_ = true;  // load_best() resets worse_validations
  const int64_t last = report_.steps;
  if (spec_.training.early_stop_keep == job::EarlyStopKeep::kLast) return;
  // If writing the snapshot failed, the last model may be the best one without a snapshot.
  const bool last_is_best =
      state_.measured_at == last && mean_of(state_.scores.nll) < state_.best_loss;
  if (state_.best_steps == last || state_.best_steps < 0 || last_is_best) return;
  if (!checkpoints_.load_best(state_)) return;
  if (first_rank())
    log::info("best snapshot restored",
              {{"steps", report_.steps}, {"loss", state_.best_loss}, {"steps_done", last}});
}

// If a snapshot cannot be written, training falls back to the best earlier snapshot and logs a
// warning.
void TrainingLoop::save_if_best(double loss) {
  const job::TrainingSpec& training = spec_.training;
  if (training.early_stop_patience == 0 || training.early_stop_keep != job::EarlyStopKeep::kBest)
    return;
  if (state_.best_steps >= 0 && loss >= state_.best_loss) return;
  const double best_before = std::exchange(state_.best_loss, loss);
  const int64_t steps_before = std::exchange(state_.best_steps, report_.steps);
  report_.key = spec_.key;
  report_.base_model_sha256 = spec_.base_model_sha256;
  try {
    checkpoints_.save_best(state_);
  } catch (const std::exception& error) {
    state_.best_loss = best_before;
    state_.best_steps = steps_before;
    log_and_continue("best snapshot not saved", error);
  }
}

// Logs waiting times and memory, which differ between the stages of a pipeline.
void TrainingLoop::log_stage(double waited_seconds) const {
  if (pipeline_.num_stages() == 1 || pipeline_.data().rank() != 0) return;
  log::info("pipeline stage done", {{"stage", pipeline_.stage()},
                                    {"step_seconds", report_.train_seconds},
                                    {"waited_seconds", waited_seconds},
                                    {"peak_memory_bytes", peak_memory_bytes(context_.device)}});
}

void TrainingLoop::step(tokens::Sampler& mine, tokens::Sampler& whole_batch) {
  const int64_t step = spec_.training.first_step + report_.steps;
  const auto start = SteadyClock::now();
  const double rate = learning_rate(spec_.training, step);
  const auto indices = [&](tokens::Sampler& sampler) {
    if (spec_.training.epochs == 0)
      return data_.in_dataset(sampler.step_indices(static_cast<uint64_t>(step)));
    const Positions batch =
        step_positions(spec_.training, spec_.key.round, report_.steps, data_.size());
    return data_.in_dataset(sampler.indices(batch.begin, batch.end));
  };
  StepResult result;
  size_t batch_size = 0;
  with_translated_context("step " + std::to_string(step + 1), [&] {
    const std::vector<uint64_t> batch = indices(whole_batch);
    batch_size = batch.size();
    result =
        trainer_.step(data_.dataset(), indices(mine), count_targets(data_.dataset(), batch), rate);
    // With several groups, one group's error must also end the other groups, which would wait for
    // it.
    if (groups_.count() == 1) return check_finite(result);
    on_all_ranks(context_.group, context_.device, [&] { check_finite(result); });
  });
  result = trainer_.end_step(report_.steps + 1, result);
  // On a GPU the optimizer may still run: its time counts for the next step.
  record(step, result, rate, seconds_since(start), batch_size);
}

void TrainingLoop::record(int64_t step, const StepResult& result, double learning_rate,
                          double seconds, size_t batch_size) {
  report_.steps += 1;
  // The samples are the update's weight in the mean: skipped batches do not count.
  const int64_t samples = static_cast<int64_t>(batch_size) * result.trained_batches;
  report_.samples += samples;
  report_.tokens += result.trained_tokens;
  // A running mean.
  report_.train_loss += (result.loss - report_.train_loss) / static_cast<double>(report_.steps);
  report_.train_loss_last = result.loss;
  report_.train_accuracy +=
      (result.accuracy() - report_.train_accuracy) / static_cast<double>(report_.steps);
  report_.train_accuracy_last = result.accuracy();
  report_.train_seconds += seconds;
  if (!first_rank()) return;
  const StepMetrics metrics{step + 1,
                            result.loss,
                            learning_rate,
                            result.grad_norm,
                            result.trained_tokens,
                            seconds,
                            peak_memory_bytes(context_.device),
                            result.phases,
                            result.accuracy(),
                            report_.steps,
                            spec_.training.steps,
                            samples,
                            context_.group.size()};
  metrics_->append(metrics);
  progress_->update(report_.steps, metrics);
}

void TrainingLoop::validate_if_due() {
  const int64_t interval = spec_.training.validation_interval;
  if (interval == 0 || validation_.size() == 0 || report_.steps % interval != 0 || complete())
    return;
  const Scores scores = validation_.measure(model_, "mid-training", stop_, report_.steps);
  if (scores.size() < validation_.size()) return;  // finishing early
  state_.scores = scores;
  state_.measured_at = report_.steps;
  if (first_rank())
    metrics_->append_validation(spec_.training.first_step + report_.steps,
                                validation_.results(state_.before, scores));
  const double now = mean_of(scores.nll);
  if (now < state_.best_validation) {
    state_.best_validation = now;
    state_.worse_validations = 0;
  } else if (++state_.worse_validations == spec_.training.early_stop_patience && first_rank()) {
    log::info("early stopping: the validation loss no longer improves",
              {{"steps", report_.steps}, {"best", state_.best_validation}, {"now", now}});
  }
  save_if_best(now);
}

void TrainingLoop::save() {
  report_.key = spec_.key;
  report_.base_model_sha256 = spec_.base_model_sha256;
  checkpoints_.save(state_);
  last_saved_ = report_.steps;
  if (first_rank()) log::info("checkpoint saved", {{"steps", report_.steps}});
}

void TrainingLoop::save_if_unsaved() {
  if (report_.steps > 0 && last_saved_ != report_.steps) save();
}

// A failure is only logged, because the next checkpoint replaces this one.
void TrainingLoop::save_if_due() {
  const int64_t interval = spec_.training.checkpoint_interval;
  if (interval == 0 || report_.steps % interval != 0 || complete()) return;
  try {
    save();
  } catch (const std::exception& error) {
    log_and_continue("checkpoint not saved", error);
  }
}

}  // namespace xffl::train
