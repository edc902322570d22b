#include "xffl/train/run_job.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "agree.h"
#include "job_state.h"
#include "memory_plan.h"
#include "metrics.h"
#include "update.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/tokens/sampler.h"
#include "xffl/train/dataset.h"
#include "xffl/train/device.h"
#include "xffl/train/evaluate.h"
#include "xffl/train/schedule.h"
#include "xffl/train/trainer.h"

namespace xffl::train {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

std::string environment_or_empty(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class JobRun {
 public:
  JobRun(const job::JobSpec& spec, const JobContext& context)
      : spec_(spec), context_(context), group_(context.group), start_(SteadyClock::now()) {}

  job::JobReport run();

 private:
  bool first_rank() const { return group_.rank() == 0; }
  std::optional<job::JobReport> earlier_report() const;
  void load();
  void tell_memory_plan() const;
  std::vector<double> validate(std::string_view when);
  void record_validation(size_t index, std::string_view when, const Evaluation& result);
  void resume();
  void train();
  void save_state();
  void save_state_if_due();
  int64_t global_tokens(tokens::Sampler& whole_batch, int64_t step) const;
  bool told_to_finish();
  void end_if_aborted() const;
  void record(int64_t step, const StepResult& result, double learning_rate, double seconds);
  void finish_report(const std::vector<double>& before, const std::vector<double>& after);
  void write_report();
  job::JobReport leave_checkpoint();
  bool trains() const { return spec_.training.steps > 0; }
  bool leaves_checkpoint() const { return trains() && spec_.on_stop == job::OnStop::kCheckpoint; }

  const job::JobSpec& spec_;
  const JobContext& context_;
  comm::Group& group_;
  SteadyClock::time_point start_;
  std::optional<ShardGroups> shard_groups_;
  LoadedModel model_;
  std::optional<Dataset> data_;
  std::vector<Dataset> validation_;
  std::optional<Trainer> trainer_;
  std::optional<JobStateStore> store_;
  std::vector<double> nll_before_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
  job::JobReport report_;
  bool finishing_ = false;   // the same on all ranks
  int64_t last_saved_ = -1;  // steps of the newest checkpoint
};

// Of a job that was requeued after it had finished.
std::optional<job::JobReport> JobRun::earlier_report() const {
  if (!std::filesystem::exists(spec_.report_path)) return std::nullopt;
  const job::JobReport report = job::read_job_report(spec_.report_path);
  if (report.key == spec_.key) return report;
  throw Error(ErrorKind::kRejected, spec_.report_path + ": holds the report of another job, " +
                                        report.key.job_name() + " with nonce " + report.key.nonce +
                                        ": give each attempt a folder of its own");
}

void JobRun::load() {
  on_first_rank(group_, context_.device,
                [&] { check_base_model(spec_.base_model_path, spec_.base_model_sha256); });
  told_to_finish();
  const job::TrainingSpec& training = spec_.training;
  shard_groups_.emplace(group_, training, context_.local_world_size);
  model_ = load_model(spec_.base_model_path,
                      {context_.device, training.precision, trains(), training.sharding,
                       training.offload, training.recompute, shard_groups_->groups()});
  const ModelLimits limits(model_.config);
  if (trains()) {
    const std::vector<std::filesystem::path> paths(spec_.train_paths.begin(),
                                                   spec_.train_paths.end());
    data_.emplace(paths, limits, static_cast<uint64_t>(spec_.training.train_samples));
    if (data_->size() == 0)
      throw Error(ErrorKind::kRejected, "the training data holds no sequence");
  }
  for (const job::ValidationSet& set : spec_.validation) {
    validation_.emplace_back(std::vector<std::filesystem::path>{set.path}, limits,
                             static_cast<uint64_t>(spec_.training.validation_samples));
  }
  if (first_rank()) {
    log::info("job loaded", {{"job", spec_.key.job_name()},
                             {"parameters", model_.config.num_parameters()},
                             {"ranks", group_.size()},
                             {"device", context_.device.str()},
                             {"sharding", std::string(job::to_string(training.sharding))},
                             {"shards", shard_groups_->num_shards()},
                             {"precision", std::string(job::to_string(spec_.training.precision))},
                             {"sequences", data_ ? static_cast<int64_t>(data_->size()) : 0}});
  }
}

void JobRun::tell_memory_plan() const {
  const MemoryPlan plan =
      plan_memory(model_.config, model_.parameters->layout(), spec_.training, data_->longest());
  const int64_t there = available_memory_bytes(context_.device) /
                        (context_.device.is_cuda() ? 1 : context_.local_world_size);
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  const log::Fields fields{{"parameters_gb", gigabytes(plan.parameters)},
                           {"masters_gb", gigabytes(plan.masters)},
                           {"gradients_gb", gigabytes(plan.gradients)},
                           {"moments_gb", gigabytes(plan.moments)},
                           {"buffers_gb", gigabytes(plan.buffers)},
                           {"activations_gb_about", gigabytes(plan.activations)},
                           {"host_gb", gigabytes(plan.host)},
                           {"total_gb", gigabytes(plan.total())},
                           {"available_gb", gigabytes(there)}};
  // What is in use by now is part of the plan, but not of what is available.
  const int64_t wanted = context_.device.is_cuda() ? plan.device() : plan.total();
  if (wanted <= there) return log::info("memory plan of a rank: fits", fields);
  log::warning(
      "memory plan of a rank: may not fit; try more sharding, recompute: full, a smaller "
      "micro_batch_size, or offload",
      fields);
}

// Ends early, with fewer losses than sets, when told to finish.
std::vector<double> JobRun::validate(std::string_view when) {
  std::vector<double> losses;
  for (size_t i = 0; i < validation_.size(); ++i) {
    const std::optional<Evaluation> result =
        evaluate(*model_.model, validation_[i], spec_.training.micro_batch_size, group_,
                 context_.device, [&] { return told_to_finish(); });
    if (!result) break;
    record_validation(i, when, *result);
    losses.push_back(result->nll());
  }
  return losses;
}

void JobRun::record_validation(size_t index, std::string_view when, const Evaluation& result) {
  const std::string& name = spec_.validation[index].name;
  if (!std::isfinite(result.nll())) {
    throw Error(ErrorKind::kFailed, "the validation loss on '" + name + "' " + std::string(when) +
                                        " training is " + std::to_string(result.nll()) +
                                        ", expected a finite number");
  }
  if (report_.validation.size() <= index) report_.validation.push_back({name, result.tokens, 0, 0});
  if (!first_rank()) return;
  log::info("validation", {{"set", name},
                           {"when", when},
                           {"loss", result.nll()},
                           {"perplexity", std::exp(result.nll())},
                           {"tokens", result.tokens}});
}

// Every rank knows the whole batch, so nothing needs to be sent.
int64_t JobRun::global_tokens(tokens::Sampler& whole_batch, int64_t step) const {
  int64_t total = 0;
  for (const uint64_t index : whole_batch.step_indices(static_cast<uint64_t>(step)))
    total += data_->num_targets(index);
  return total;
}

// Asked by all ranks at the same points, so that they agree: the signal may have reached one only.
bool JobRun::told_to_finish() {
  if (finishing_) return true;
  const StopRequest mine = context_.stop ? context_.stop() : StopRequest::kNone;
  const StopRequest agreed = agree_on_stop(group_, context_.device, mine);
  if (agreed == StopRequest::kNone) return false;
  if (agreed == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
  if (report_.steps == 0 && !leaves_checkpoint()) {
    throw Error(ErrorKind::kCancelled, spec_.training.steps == 0
                                           ? "told to finish before all was measured"
                                           : "told to finish before the first step was done: no "
                                             "update was written");
  }
  if (first_rank())
    log::warning("finishing early", {{"steps", report_.steps}, {"of", spec_.training.steps}});
  finishing_ = true;
  return true;
}

// For what rank 0 does alone.
void JobRun::end_if_aborted() const {
  if (context_.stop && context_.stop() == StopRequest::kAbort)
    throw Error(ErrorKind::kCancelled, "stopped on request: no update was written");
}

void JobRun::record(int64_t step, const StepResult& result, double learning_rate, double seconds) {
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

// Goes on from the newest checkpoint of an earlier attempt, or of this one before a requeue.
void JobRun::resume() {
  trainer_.emplace(model_, spec_.training, group_, context_.device);
  store_.emplace(spec_, group_, context_.device, model_, *trainer_);
  JobState state;
  if (!store_->load(state)) return;
  report_ = state.report;
  nll_before_ = state.nll_before;
  last_saved_ = report_.steps;
  if (first_rank()) log::info("resumed from a checkpoint", {{"steps", report_.steps}});
}

void JobRun::save_state() {
  JobState state{report_, nll_before_};
  state.report.key = spec_.key;
  state.report.base_model_sha256 = spec_.base_model_sha256;
  store_->save(state);
  last_saved_ = report_.steps;
  if (first_rank()) log::info("checkpoint saved", {{"steps", report_.steps}});
}

// A checkpoint that cannot be written is missed only if the job ends before the next one.
void JobRun::save_state_if_due() {
  const int64_t interval = spec_.training.checkpoint_interval;
  if (interval == 0 || report_.steps % interval != 0 || report_.steps == spec_.training.steps)
    return;
  try {
    save_state();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    if (first_rank()) log::warning("no checkpoint could be saved", {{"problem", error.what()}});
  }
}

void JobRun::train() {
  const job::TrainingSpec& training = spec_.training;
  const auto batch_size = static_cast<uint64_t>(training.batch_size);
  tokens::Sampler mine(data_->size(), batch_size, training.seed, group_.rank(), group_.size());
  tokens::Sampler whole_batch(data_->size(), batch_size, training.seed, 0, 1);
  if (first_rank()) {
    metrics_.emplace(spec_.metrics_path, training.first_step + report_.steps);
    progress_.emplace(training.steps, true);
  }
  while (report_.steps < training.steps && !told_to_finish()) {
    const int64_t step = training.first_step + report_.steps;
    const auto start = SteadyClock::now();
    const double rate = learning_rate(training, step);
    const StepResult result = with_context("step " + std::to_string(step + 1), [&] {
      return trainer_->step(*data_, mine.step_indices(static_cast<uint64_t>(step)),
                            global_tokens(whole_batch, step), rate);
    });
    synchronize(context_.device);
    record(step, result, rate, seconds_since(start));
    save_state_if_due();
  }
}

void JobRun::finish_report(const std::vector<double>& before, const std::vector<double>& after) {
  report_.stopped_early = report_.steps < spec_.training.steps || after.size() < validation_.size();
  report_.validation.resize(after.size());
  for (size_t i = 0; i < report_.validation.size(); ++i) {
    report_.validation[i].nll_before = before[i];
    report_.validation[i].nll_after = after[i];
  }
  report_.key = spec_.key;
  report_.base_model_sha256 = spec_.base_model_sha256;
  report_.total_seconds = seconds_since(start_);
  if (report_.train_seconds > 0) {
    report_.tokens_per_second = static_cast<double>(report_.tokens) / report_.train_seconds;
  }
  report_.peak_memory_bytes =
      max_over_ranks(group_, context_.device, peak_memory_bytes(context_.device));
  report_.world_size = group_.size();
  report_.scheduler_job_id = environment_or_empty("SLURM_JOB_ID");
  report_.restarts = std::atoi(environment_or_empty("SLURM_RESTART_COUNT").c_str());
  report_.trainer = context_.trainer;
}

void JobRun::write_report() {
  report_.total_seconds = seconds_since(start_);
  make_dirs(std::filesystem::path(spec_.report_path).parent_path());
  write_file_atomic(spec_.report_path, job::format_job_report(report_));
}

// Instead of an update: the next attempt goes on from here.
job::JobReport JobRun::leave_checkpoint() {
  if (report_.steps > 0 && last_saved_ != report_.steps) save_state();
  report_.validation.clear();
  finish_report({}, {});
  on_first_rank(group_, context_.device, [&] { write_report(); });
  if (first_rank())
    log::info("job stopped, to be continued",
              {{"steps", report_.steps}, {"of", spec_.training.steps}});
  return report_;
}

job::JobReport JobRun::run() {
  std::optional<job::JobReport> earlier;
  on_first_rank(group_, context_.device, [&] { earlier = earlier_report(); });
  if (max_over_ranks(group_, context_.device, earlier ? 1 : 0) == 1) {
    if (first_rank()) log::info("this job is complete already", {{"report", spec_.report_path}});
    return earlier.value_or(job::JobReport{});
  }
  load();
  if (trains()) {
    if (first_rank()) tell_memory_plan();
    resume();
  }
  if (nll_before_.empty()) nll_before_ = validate("before");
  if (trains()) train();
  if (finishing_ && leaves_checkpoint() && report_.steps < spec_.training.steps)
    return leave_checkpoint();
  // What was told to finish saves first of all; measuring may take longer than there is time.
  std::vector<double> after;
  if (!finishing_) after = report_.steps > 0 ? validate("after") : nll_before_;
  finish_report(nll_before_, after);
  MasterStream masters(model_);
  if (!first_rank() && report_.steps > 0) masters.finish();
  on_first_rank(group_, context_.device, [&] {
    if (report_.steps > 0)
      report_.update_sha256 = write_update(spec_, model_, masters, [&] { end_if_aborted(); });
    write_report();
    if (store_) store_->clear();
  });
  if (first_rank()) {
    log::info("job done", {{"steps", report_.steps},
                           {"stopped_early", report_.stopped_early},
                           {"tokens", report_.tokens},
                           {"loss", report_.train_loss_last},
                           {"tokens_per_second", report_.tokens_per_second},
                           {"seconds", report_.total_seconds}});
  }
  return report_;
}

}  // namespace

job::JobReport run_job(const job::JobSpec& spec, const JobContext& context) {
  return JobRun(spec, context).run();
}

}  // namespace xffl::train
