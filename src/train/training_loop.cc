#include "training_loop.h"

#include <numeric>
#include <string>
#include <utility>

#include "agree.h"
#include "elapsed.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/device.h"
#include "xffl/train/foreign_error.h"
#include "xffl/train/schedule.h"

namespace xffl::train {
namespace {

// Every rank knows its group's whole batch, so nothing needs to be sent.
int64_t count_targets(const Dataset& data, const std::vector<uint64_t>& indices) {
  int64_t total = 0;
  for (const uint64_t index : indices) total += data.num_targets(index);
  return total;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

TrainingLoop::TrainingLoop(const job::JobSpec& spec, const JobContext& context,
                           const JobGroups& groups, Pipeline& pipeline, LoadedModel& model,
                           const TrainingData& data, const Validation& validation,
                           StopAgreement& stop)
    : spec_(spec),
      context_(context),
      groups_(groups),
      pipeline_(pipeline),
      model_(model),
      data_(data),
      validation_(validation),
      stop_(stop),
      trainer_(model, spec.training, pipeline, context.device),
      exchange_(groups, *model.parameters, spec.training.groups, context.device),
      store_(spec, context.group, context.device, model, trainer_, groups, exchange_),
      optimizer_state_(spec, context.group, context.device, model, trainer_, groups, exchange_) {
  trainer_.set_gradient_exchange([this](int64_t tokens) { exchange_.exchange_gradients(tokens); });
}

std::vector<double> TrainingLoop::resume() {
  if (!store_.load(state_)) {
    report_.optimizer_lost = optimizer_state_.load();
    return {};
  }
  last_saved_ = report_.steps;
  if (first_rank()) log::info("resumed from a checkpoint", {{"steps", report_.steps}});
  return state_.nll_before;
}

bool TrainingLoop::complete() const {
  const job::TrainingSpec& training = spec_.training;
  return report_.steps >= training.steps ||
         (training.max_tokens > 0 && report_.tokens >= training.max_tokens) ||
         stopped_by_validation_ || no_longer_improves();
}

bool TrainingLoop::no_longer_improves() const {
  const int64_t patience = spec_.training.early_stop_patience;
  return patience > 0 && state_.worse_validations >= patience;
}

void TrainingLoop::run(const std::vector<double>& nll_before) {
  const job::TrainingSpec& training = spec_.training;
  const auto batch_size = static_cast<uint64_t>(training.batch_size);
  const comm::Group& data_ranks = pipeline_.data();
  tokens::Sampler mine(data_.size(), batch_size, training.seed, data_ranks.rank(),
                       data_ranks.size());
  tokens::Sampler whole_batch(data_.size(), batch_size, training.seed, 0, 1);
  if (report_.steps == 0 && !nll_before.empty()) state_.best_validation = mean_of(nll_before);
  state_.nll_before = nll_before;
  if (first_rank()) {
    metrics_.emplace(spec_.metrics_path, training.first_step + report_.steps);
    progress_.emplace(training.steps, true);
  }
  const double waited_before = pipeline_.seconds_waited();
  // An attempt that was told to finish while it measured has left that to this one.
  if (report_.steps > 0 && state_.measured_at != report_.steps) validate_if_due();
  while (!complete() && !stop_.told_to_finish(report_.steps)) {
    step(mine, whole_batch);
    validate_if_due();
    save_if_due();
  }
  tell_stage(pipeline_.seconds_waited() - waited_before);
  if (no_longer_improves()) return_to_best();
  if (complete() || !leaves_checkpoint(spec_)) exchange_.finish();
}

void TrainingLoop::go_on_without(const char* event, const std::exception& error) const {
  const Error ours = translated(error);
  if (ours.kind() == ErrorKind::kCancelled) throw ours;
  if (first_rank()) log::warning(event, {{"problem", ours.what()}});
}

void TrainingLoop::return_to_best() {
  stopped_by_validation_ = true;  // whatever the best model's state says
  const int64_t last = report_.steps;
  if (spec_.training.early_stop_keep == job::EarlyStopKeep::kLast) return;
  // Better than what is kept is a last model that could not be.
  const bool last_is_best = state_.measured_at == last && mean_of(state_.losses) < state_.best_amid;
  if (state_.best_steps == last || state_.best_steps < 0 || last_is_best) return;
  if (!store_.load_best(state_)) return;
  if (first_rank())
    log::info("the model is the best that was measured",
              {{"steps", report_.steps}, {"loss", state_.best_amid}, {"steps_done", last}});
}

// What cannot be written is told; what is on the disk by then stays the candidate.
void TrainingLoop::keep_if_best(double loss) {
  const job::TrainingSpec& training = spec_.training;
  if (training.early_stop_patience == 0 || training.early_stop_keep != job::EarlyStopKeep::kBest)
    return;
  if (state_.best_steps >= 0 && loss >= state_.best_amid) return;
  const double best_before = std::exchange(state_.best_amid, loss);
  const int64_t steps_before = std::exchange(state_.best_steps, report_.steps);
  report_.key = spec_.key;
  report_.base_model_sha256 = spec_.base_model_sha256;
  try {
    store_.save_best(state_);
  } catch (const std::exception& error) {
    state_.best_amid = best_before;
    state_.best_steps = steps_before;
    go_on_without("the best model could not be kept", error);
  }
}

// How long a pipeline's stages wait for each other, and what they hold, differs.
void TrainingLoop::tell_stage(double waited_seconds) const {
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
    return data_.in_dataset(sampler.step_indices(static_cast<uint64_t>(step)));
  };
  StepResult result;
  with_translated_context("step " + std::to_string(step + 1), [&] {
    result = trainer_.step(data_.dataset(), indices(mine),
                           count_targets(data_.dataset(), indices(whole_batch)), rate);
    // What ends one group must not leave the others waiting for it. (What ends one rank is noticed
    // by those that it leaves alone.)
    if (groups_.count() == 1) return check_finite(result);
    on_all_ranks(context_.group, context_.device, [&] { check_finite(result); });
  });
  exchange_.after_step(report_.steps + 1, result.trained_tokens);
  // On a GPU the optimizer's work goes on and is part of the next step's time.
  record(step, exchange_.over_groups(result), rate, seconds_since(start));
}

void TrainingLoop::record(int64_t step, const StepResult& result, double learning_rate,
                          double seconds) {
  report_.steps += 1;
  // The weight in the mean: what the model has not learnt from does not count.
  report_.samples += spec_.training.batch_size * result.trained_batches;
  report_.tokens += result.trained_tokens;
  // The mean so far.
  report_.train_loss += (result.loss - report_.train_loss) / static_cast<double>(report_.steps);
  report_.train_loss_last = result.loss;
  report_.train_seconds += seconds;
  if (!first_rank()) return;
  const StepMetrics metrics{step + 1,
                            result.loss,
                            learning_rate,
                            result.grad_norm,
                            result.trained_tokens,
                            seconds,
                            peak_memory_bytes(context_.device),
                            result.phases};
  metrics_->append(metrics);
  progress_->update(report_.steps, metrics);
}

void TrainingLoop::validate_if_due() {
  const int64_t interval = spec_.training.validation_interval;
  if (interval == 0 || validation_.size() == 0 || report_.steps % interval != 0 || complete())
    return;
  const std::vector<double> losses = validation_.measure(model_, "amid", stop_, report_.steps);
  if (losses.size() < validation_.size()) return;  // told to finish
  state_.losses = losses;
  state_.measured_at = report_.steps;
  if (first_rank())
    metrics_->append_validation(spec_.training.first_step + report_.steps,
                                validation_.results(state_.nll_before, losses));
  const double now = mean_of(losses);
  if (now < state_.best_validation) {
    state_.best_validation = now;
    state_.worse_validations = 0;
  } else if (++state_.worse_validations == spec_.training.early_stop_patience && first_rank()) {
    log::info("validation no longer improves: the job ends here",
              {{"steps", report_.steps}, {"best", state_.best_validation}, {"now", now}});
  }
  keep_if_best(now);
}

void TrainingLoop::save() {
  report_.key = spec_.key;
  report_.base_model_sha256 = spec_.base_model_sha256;
  store_.save(state_);
  last_saved_ = report_.steps;
  if (first_rank()) log::info("checkpoint saved", {{"steps", report_.steps}});
}

void TrainingLoop::save_if_unsaved() {
  if (report_.steps > 0 && last_saved_ != report_.steps) save();
}

// A checkpoint that cannot be written is missed only if the job ends before the next one.
void TrainingLoop::save_if_due() {
  const int64_t interval = spec_.training.checkpoint_interval;
  if (interval == 0 || report_.steps % interval != 0 || complete()) return;
  try {
    save();
  } catch (const std::exception& error) {
    go_on_without("no checkpoint could be saved", error);
  }
}

}  // namespace xffl::train
