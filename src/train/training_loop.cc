#include "training_loop.h"

#include <chrono>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/device.h"
#include "xffl/train/schedule.h"

namespace xffl::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

TrainingLoop::TrainingLoop(const job::JobSpec& spec, const JobContext& context, LoadedModel& model,
                           const Dataset& data, StopAgreement& stop)
    : spec_(spec),
      context_(context),
      data_(data),
      stop_(stop),
      trainer_(model, spec.training, context.group, context.device),
      store_(spec, context.group, context.device, model, trainer_) {}

std::vector<double> TrainingLoop::resume() {
  JobState state;
  if (!store_.load(state)) return {};
  report_ = state.report;
  last_saved_ = report_.steps;
  if (first_rank()) log::info("resumed from a checkpoint", {{"steps", report_.steps}});
  return state.nll_before;
}

void TrainingLoop::run(const std::vector<double>& nll_before) {
  const job::TrainingSpec& training = spec_.training;
  const auto batch_size = static_cast<uint64_t>(training.batch_size);
  tokens::Sampler mine(data_.size(), batch_size, training.seed, context_.group.rank(),
                       context_.group.size());
  tokens::Sampler whole_batch(data_.size(), batch_size, training.seed, 0, 1);
  if (first_rank()) {
    metrics_.emplace(spec_.metrics_path, training.first_step + report_.steps);
    progress_.emplace(training.steps, true);
  }
  while (report_.steps < training.steps && !stop_.told_to_finish(report_.steps)) {
    step(mine, whole_batch);
    save_if_due(nll_before);
  }
}

void TrainingLoop::step(tokens::Sampler& mine, tokens::Sampler& whole_batch) {
  const int64_t step = spec_.training.first_step + report_.steps;
  const auto start = SteadyClock::now();
  const double rate = learning_rate(spec_.training, step);
  const StepResult result = with_context("step " + std::to_string(step + 1), [&] {
    return trainer_.step(data_, mine.step_indices(static_cast<uint64_t>(step)),
                         global_tokens(whole_batch, step), rate);
  });
  synchronize(context_.device);
  record(step, result, rate, std::chrono::duration<double>(SteadyClock::now() - start).count());
}

// Every rank knows the whole batch, so nothing needs to be sent.
int64_t TrainingLoop::global_tokens(tokens::Sampler& whole_batch, int64_t step) const {
  int64_t total = 0;
  for (const uint64_t index : whole_batch.step_indices(static_cast<uint64_t>(step)))
    total += data_.num_targets(index);
  return total;
}

void TrainingLoop::record(int64_t step, const StepResult& result, double learning_rate,
                          double seconds) {
  report_.steps += 1;
  report_.samples += spec_.training.batch_size;
  report_.tokens += result.tokens;
  // The mean so far.
  report_.train_loss += (result.loss - report_.train_loss) / static_cast<double>(report_.steps);
  report_.train_loss_last = result.loss;
  report_.train_seconds += seconds;
  if (!first_rank()) return;
  const StepMetrics metrics{step + 1,
                            result.loss,
                            learning_rate,
                            result.grad_norm,
                            result.tokens,
                            seconds,
                            peak_memory_bytes(context_.device)};
  metrics_->append(metrics);
  progress_->update(report_.steps, metrics);
}

void TrainingLoop::save(const std::vector<double>& nll_before) {
  JobState state{report_, nll_before};
  state.report.key = spec_.key;
  state.report.base_model_sha256 = spec_.base_model_sha256;
  store_.save(state);
  last_saved_ = report_.steps;
  if (first_rank()) log::info("checkpoint saved", {{"steps", report_.steps}});
}

void TrainingLoop::save_if_unsaved(const std::vector<double>& nll_before) {
  if (report_.steps > 0 && last_saved_ != report_.steps) save(nll_before);
}

// A checkpoint that cannot be written is missed only if the job ends before the next one.
void TrainingLoop::save_if_due(const std::vector<double>& nll_before) {
  const int64_t interval = spec_.training.checkpoint_interval;
  if (interval == 0 || report_.steps % interval != 0 || report_.steps == spec_.training.steps)
    return;
  try {
    save(nll_before);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    if (first_rank()) log::warning("no checkpoint could be saved", {{"problem", error.what()}});
  }
}

}  // namespace xffl::train
