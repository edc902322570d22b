#include "xffl/train/run_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "data_hash.h"
#include "epochs.h"
#include "gpu_energy.h"
#include "group_exchange.h"
#include "memory_plan.h"
#include "metrics.h"
#include "rank_sync.h"
#include "training_loop.h"
#include "update.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/job/supported.h"
#include "xffl/kernels/cuda/gpu.h"
#include "xffl/train/dataset.h"
#include "xffl/train/device.h"
#include "xffl/train/environment.h"
#include "xffl/train/evaluate.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {
namespace {

void check_supported(const job::JobSpec& spec, const job::Ranks& ranks) {
  const job::TrainingSpec& training = spec.training;
  if (const auto found = job::find_unsupported(training, spec.validation.size(), ranks))
    throw Error(ErrorKind::kConfig, found->message);
  if (training.lora.rank == 0 && !spec.adapter_path.empty())
    throw Error(ErrorKind::kConfig,
                "adapter_path is set, but training.lora.rank is 0: expected a rank of 1 or more");
}

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

[[noreturn]] void throw_out_of_memory(const MemoryPlan& plan, const FreeMemory& free) {
  const auto text = [](int64_t bytes) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.1f GB", gigabytes(bytes));
    return std::string(buffer);
  };
  const int64_t on_host = free.gpu ? plan.host : plan.exact();
  std::string needs;
  if (free.gpu)
    needs = text(plan.exact() - plan.host) + " of GPU memory, but " + text(*free.gpu) +
            " are free, and ";
  throw Error(
      ErrorKind::kFailed,
      "out of memory before loading: parameters, masters, gradients and moments of this rank "
      "alone need " +
          needs + text(on_host) + " of host memory, but " + text(free.host) +
          " are free: use more sharding, more ranks, narrower masters, moments or "
          "gradients, or offload");
}

}  // namespace

class JobRun {
 public:
  JobRun(const job::JobSpec& spec, const JobContext& context)
      : spec_(spec),
        context_(context),
        group_(context.group),
        start_(SteadyClock::now()),
        stop_(spec_, context) {}

  job::JobReport run() {
    std::optional<job::JobReport> earlier;
    on_first_rank(group_, context_.device, [&] { earlier = earlier_report(); });
    if (max_over_ranks(group_, context_.device, earlier ? 1 : 0) == 1) {
      if (first_rank()) log::info("job already complete", {{"report", spec_.report_path}});
      return earlier.value_or(job::JobReport{});
    }
    if (first_rank() && !context_.benchmark) data_hash_.emplace(spec_);
    begin_energy();
    load();
    train();
    if (stop_.finishing() && stops_with_checkpoint(spec_) && !complete()) {
      finish_with_checkpoint();
    } else {
      finish_with_update();
    }
    return report_;
  }

 private:
  bool first_rank() const { return group_.rank() == 0; }
  bool trains() const { return spec_.training.steps > 0; }
  bool complete() const { return !loop_ || loop_->complete(); }

  // Returns the report of this attempt if the attempt had finished before a requeue.
  std::optional<job::JobReport> earlier_report() const {
    if (!std::filesystem::exists(spec_.report_path)) return std::nullopt;
    const job::JobReport report = job::read_job_report(spec_.report_path);
    if (report.key == spec_.key) return report;
    throw Error(ErrorKind::kRejected, spec_.report_path + ": is the report of another job, " +
                                          report.key.name() + " with nonce " + report.key.nonce +
                                          ": give each attempt a folder of its own");
  }

  // Returns whether there may be a checkpoint whose steps can make an update; collective.
  bool may_resume() const {
    std::error_code none;
    const bool is_there = first_rank() && std::filesystem::exists(spec_.state_path, none);
    return max_over_ranks(group_, context_.device, is_there ? 1 : 0) == 1;
  }

  void load() {
    check_supported(spec_, {group_.size(), context_.local_world_size});
    if (spec_.training.deterministic) use_deterministic_algorithms(context_.device);
    if (spec_.training.document_mask) use_attention_of_any_length(context_.device);
    use_attention(spec_.training.attention, context_.device);
    const auto checks_begin = SteadyClock::now();
    if (!context_.benchmark)
      on_first_rank(group_, context_.device, [&] { prepare_input_models(spec_); });
    const auto loading_begins = SteadyClock::now();
    if (!may_resume()) stop_.should_finish(0);
    const job::TrainingSpec& training = spec_.training;
    groups_.emplace(group_, training.groups.count);
    pipeline_.emplace(groups_->inner(), static_cast<int>(training.pipeline.stages),
                      context_.device);
    if (groups_->count() > 1) all_ranks_.emplace(group_, 1, context_.device);
    comm::Group& data = pipeline_->data();
    shard_groups_.emplace(data, training, std::min(context_.local_world_size, data.size()));
    shard::Groups groups = shard_groups_->groups();
    groups.stages = &pipeline_->stages();
    load_options_ = load_options(spec_, context_.device, groups);
    load_options_.stage = pipeline_->stage();
    load_options_.num_stages = pipeline_->num_stages();
    const LoadedModel outline = outline_model(spec_.base_model_path, load_options_);
    const ModelLimits limits(outline.config);
    // All ranks of a machine read the free memory before on_all_ranks() lets a rank allocate.
    const FreeMemory free =
        free_memory(context_.device, context_.local_world_size, group_.ranks_per_device());
    if (trains()) {
      on_all_ranks(group_, context_.device, [&] {
        data_.emplace(spec_, limits, groups_->index());
        if (spec_.training.epochs > 0)
          spec_.training = with_steps_of_epochs(spec_.training, spec_.key.round, data_->size());
        const MemoryPlan plan = memory_plan(outline);
        if (groups_->index() == 0 && pipeline_->data().rank() == 0) log_memory_plan(plan, free);
        if (judge(plan, free) == MemoryVerdict::kCannotFit) throw_out_of_memory(plan, free);
      });
    }
    model_ = load_model(spec_.base_model_path, load_options_);
    const auto loaded = SteadyClock::now();
    startup_seconds_ = process_seconds();
    validation_.emplace(spec_, context_, limits, all_ranks_ ? *all_ranks_ : *pipeline_);
    log_loaded(seconds_between(checks_begin, loading_begins),
               seconds_between(loading_begins, loaded));
  }

  void log_loaded(double checking_seconds, double loading_seconds) const {
    if (!first_rank()) return;
    const job::TrainingSpec& training = spec_.training;
    log::info("job loaded", {{"job", spec_.key.name()},
                             {"parameters", model_.config.num_parameters()},
                             {"trained", num_trained(model_)},
                             {"ranks", group_.size()},
                             {"groups", groups_->count()},
                             {"device", context_.device.str()},
                             {"sharding", std::string(job::to_string(training.sharding))},
                             {"shards", shard_groups_->num_shards()},
                             {"precision", std::string(job::to_string(training.precision))},
                             {"masters", std::string(job::to_string(training.masters))},
                             {"attention", context_.device.is_cuda()
                                               ? std::string(job::to_string(training.attention))
                                               : "xffl's kernel for CPUs"},
                             {"startup_seconds", startup_seconds_},
                             {"checking_seconds", checking_seconds},
                             {"loading_seconds", loading_seconds},
                             {"sequences", data_ ? static_cast<int64_t>(data_->size()) : 0}});
  }

  // Warns of the rounding losses of narrow storage.
  void warn_of_rounding() const {
    const job::TrainingSpec& training = spec_.training;
    if (training.masters == job::Masters::kNone) {
      log::warning(
          "training.masters: none keeps bfloat16 weights only: a step that changes a weight by "
          "less "
          "than half a unit in its last place (1/512 to 1/256 of the weight) is lost; small "
          "learning "
          "rates lose most steps (figures: docs/user/training.md; split is exact at 2 bytes a "
          "parameter)",
          {{"learning_rate", training.learning_rate}});
    }
    // A step reduces a second moment v by at most (1 - beta2) v.
    if (training.moment_dtype == job::StateDtype::kBfloat16 &&
        training.optimizer != job::OptimizerKind::kSgd && 1 - training.beta2 < 1.0 / 256) {
      log::warning(
          "training.moment_dtype: bf16 is too narrow for this beta2: a step reduces a second "
          "moment "
          "by at most 1 - beta2 of its value, which bfloat16 rounds away below 1/256: use 0.99 or "
          "less, or fp32",
          {{"beta2", training.beta2}});
    }
  }

  MemoryPlan memory_plan(const LoadedModel& outline) const {
    const job::TrainingSpec& training = spec_.training;
    const int64_t in_flight =
        max_in_flight(training.pipeline.schedule, pipeline_->stage(), pipeline_->num_stages(),
                      job::num_micro_batches(training, pipeline_->data().size()));
    const UnitRange units = outline.stages[static_cast<size_t>(outline.stage)];
    const auto layout_of = [&](const std::vector<llama::ParameterSpec>& specs) {
      return shard::FlatLayout(flat_parameters_of(specs, units), shard_groups_->num_shards());
    };
    MemoryPlan plan =
        plan_memory(outline.config, layout_of(outline.specs), training, data_->dataset().longest(),
                    {units, in_flight, trains_embedding(outline)}, context_.device);
    if (!outline.frozen_specs.empty())
      add_frozen(plan, layout_of(outline.frozen_specs), training, context_.device);
    const bool is_end = pipeline_->is_first() || pipeline_->is_last();
    const bool has_tied_head =
        outline.config.tie_word_embeddings && pipeline_->num_stages() > 1 && is_end;
    add_communicators(plan, num_communicators() + (has_tied_head ? 1 : 0), context_.device);
    return plan;
  }

  // Counts the groups of several ranks. Each such group has a communicator.
  int64_t num_communicators() const {
    std::vector<const comm::Group*> groups{&group_};
    if (groups_->count() > 1) groups.insert(groups.end(), {&groups_->inner(), &groups_->across()});
    if (pipeline_->num_stages() > 1)  // stages twice: one group down and one up
      groups.insert(groups.end(), {&pipeline_->data(), &pipeline_->stages(), &pipeline_->stages()});
    const shard::Groups shards = shard_groups_->groups();
    groups.insert(groups.end(), {shards.gather, shards.reduce, shards.replicas});
    return std::count_if(groups.begin(), groups.end(),
                         [](const comm::Group* group) { return group->size() > 1; });
  }

  void log_memory_plan(const MemoryPlan& plan, const FreeMemory& free) const {
    const log::Fields fields{{"stage", pipeline_->stage()},
                             {"parameters_gb", gigabytes(plan.parameters)},
                             {"masters_gb", gigabytes(plan.masters)},
                             {"gradients_gb", gigabytes(plan.gradients)},
                             {"moments_gb", gigabytes(plan.moments)},
                             {"buffers_gb", gigabytes(plan.buffers)},
                             {"logits_gb", gigabytes(plan.logits)},
                             {"activations_gb_about", gigabytes(plan.activations)},
                             {"workspaces_gb_about", gigabytes(plan.workspaces)},
                             {"communicators_gb_about", gigabytes(plan.communicators)},
                             {"context_gb_about", gigabytes(plan.context)},
                             {"host_gb", gigabytes(plan.host + plan.pinning)},
                             {"total_gb", gigabytes(plan.total())},
                             {"available_gb", gigabytes(free.gpu.value_or(free.host))},
                             {"host_available_gb", gigabytes(free.host)}};
    const MemoryVerdict verdict = judge(plan, free);
    if (verdict == MemoryVerdict::kFits) return log::info("memory plan of a rank: fits", fields);
    if (verdict == MemoryVerdict::kCannotFit)
      return log::warning("memory plan of a rank: cannot fit", fields);
    log::warning(
        "memory plan of a rank: may not fit; try more sharding, recompute: full, a smaller "
        "micro_batch_size, or offload",
        fields);
  }

  void train() {
    if (trains()) {
      if (first_rank()) warn_of_rounding();
      loop_.emplace(spec_, context_, *groups_, *pipeline_, model_, *data_, *validation_, stop_);
      before_ = loop_->resume();
    }
    // After resume() the loop's report counts the steps of earlier attempts.
    const int64_t steps_done = loop_ ? loop_->report().steps : 0;
    if (before_.empty()) before_ = validation_->measure(model_, "before", stop_, steps_done);
    if (!trains()) return;
    loop_->run(before_);
    report_ = loop_->report();
  }

  void finish_report(const Scores& before, const Scores& after) {
    report_.stopped_early = !complete() || after.size() < validation_->size();
    report_.validation = validation_->results(before, after);
    report_.key = spec_.key;
    report_.base_model_sha256 = spec_.base_model_sha256;
    if (report_.train_seconds > 0) {
      report_.tokens_per_second = static_cast<double>(report_.tokens) / report_.train_seconds;
      report_.samples_per_second = static_cast<double>(report_.samples) / report_.train_seconds;
      report_.tokens_per_second_per_rank = report_.tokens_per_second / group_.size();
    }
    report_.startup_seconds = startup_seconds_;
    report_.evaluation_seconds = validation_->seconds();
    report_.environment = trainer_environment();
    report_.environment.backend = group_.name();
    report_.peak_memory_bytes =
        max_over_ranks(group_, context_.device, peak_memory_bytes(context_.device));
    report_.world_size = group_.size();
    const comm::Environment environment = comm::process_environment();
    report_.scheduler_job_id = environment("SLURM_JOB_ID").value_or("");
    report_.restarts = std::atoi(environment("SLURM_RESTART_COUNT").value_or("").c_str());
    report_.trainer = context_.trainer;
    report_.nodes = sum_over_ranks(group_, context_.device, context_.local_rank == 0 ? 1 : 0);
    measure_energy();
    if (first_rank()) identify_inputs();
  }

  // Ranks of Gloo may share a GPU, whose energy would count for each of them.
  void begin_energy() {
    const at::Device device = context_.device;
    if (!device.is_cuda() || group_.name() == "gloo") return;
    const auto gpus = kernels::gpu::list();
    energy_.emplace(gpus.at(static_cast<size_t>(device.index())).pci_address);
  }
  // Absent from the report unless all ranks have measured.
  void measure_energy() {
    const auto mine = energy_ ? energy_->joules() : std::nullopt;
    const int64_t measured = sum_over_ranks(group_, context_.device, mine ? 1 : 0);
    const int64_t sum = sum_over_ranks(group_, context_.device, mine.value_or(0));
    if (measured == group_.size()) report_.gpu_energy_joules = sum;
  }

  // An early finish does not wait for the hash of the data.
  void identify_inputs() {
    try {
      report_.program_sha256 = sha256_file("/proc/self/exe");
    } catch (const Error& error) {  // an execute-only program, or one that was replaced
      log::warning("the trainer cannot read its program: the report does not identify it",
                   {{"problem", error.what()}});
    }
    if (!data_hash_) return;
    const auto is_warned = [&] {
      return stop_.finishing() || (context_.stop && context_.stop() != StopRequest::kNone);
    };
    const auto data = data_hash_->wait(is_warned);
    if (!data) return;
    report_.data_files = data->files;
    report_.data_bytes = data->bytes;
    report_.data_sha256 = data->sha256;
  }

  void write_report() {
    report_.total_seconds = seconds_since(start_);
    make_dirs(std::filesystem::path(spec_.report_path).parent_path());
    write_file_atomic(spec_.report_path, job::format_job_report(report_));
  }

  // Writes a report without an update; the next attempt resumes from the checkpoint.
  void finish_with_checkpoint() {
    loop_->save_if_unsaved();
    finish_report({}, {});  // the next attempt reports the scores
    on_first_rank(group_, context_.device, [&] { write_report(); });
    if (first_rank())
      log::info("job checkpointed", {{"steps", report_.steps}, {"of", spec_.training.steps}});
  }

  void finish_with_update() {
    if (report_.steps > 0 && report_.samples == 0)
      throw Error(ErrorKind::kFailed,
                  "all " + std::to_string(report_.steps) +
                      " steps were skipped, because their gradients overflowed fp16: nothing was "
                      "trained (each skipped step halves the loss scale: use more steps, or bf16)");
    if (loop_) stop_.should_finish(report_.steps);  // the loop does not ask after the last step
    // An early finish skips this validation, which may take longer than the remaining walltime.
    Scores after;
    if (loop_) after = loop_->scores_now();
    if (after.empty() && !stop_.finishing()) {
      after =
          report_.steps > 0 ? validation_->measure(model_, "after", stop_, report_.steps) : before_;
    }
    finish_report(before_, after);
    const bool writes_update = report_.steps > 0 && !context_.benchmark;
    MasterStream masters(model_, group_, *pipeline_, context_.device);
    if (!first_rank() && writes_update) masters.finish();
    on_first_rank(group_, context_.device, [&] {
      if (writes_update)
        report_.update_sha256 =
            write_update(spec_, load_options_, model_, masters, [&] { stop_.throw_if_aborted(); });
    });
    // An early finish writes the report first, because the report matters more than the optimizer
    // state.
    const bool finishes_early = loop_ && stop_.should_finish(report_.steps);
    if (loop_ && !finishes_early) loop_->save_optimizer();
    on_first_rank(group_, context_.device, [&] {
      write_report();
      if (loop_) loop_->clear_checkpoints();
    });
    if (finishes_early) loop_->save_optimizer();
    if (first_rank()) {
      log::info("job done", {{"steps", report_.steps},
                             {"stopped_early", report_.stopped_early},
                             {"tokens", report_.tokens},
                             {"loss", report_.train_loss_last},
                             {"tokens_per_second", report_.tokens_per_second},
                             {"evaluation_seconds", report_.evaluation_seconds},
                             {"seconds", report_.total_seconds}});
    }
  }

  job::JobSpec spec_;  // with the steps of training.epochs once the data are open
  const JobContext& context_;
  comm::Group& group_;
  SteadyClock::time_point start_;
  StopControl stop_;
  std::optional<JobGroups> groups_;
  std::optional<Pipeline> pipeline_;
  std::optional<Pipeline> all_ranks_;  // for validation, if there are several groups
  std::optional<ShardGroups> shard_groups_;
  LoadOptions load_options_;
  LoadedModel model_;
  std::optional<TrainingData> data_;
  std::optional<Validation> validation_;
  std::optional<TrainingLoop> loop_;
  Scores before_;                      // of the input model
  std::optional<DataHash> data_hash_;  // on the first rank
  std::optional<GpuEnergy> energy_;    // on a GPU of this rank alone
  double startup_seconds_ = 0;
  job::JobReport report_;
};

Job::Job(const job::JobSpec& spec, const JobContext& context)
    : run_(std::make_unique<JobRun>(spec, context)) {}
Job::~Job() = default;
job::JobReport Job::run() { return run_->run(); }

}  // namespace xffl::train
