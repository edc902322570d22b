// Test fixture: a federation in this process and in milliseconds, from the text of an xffl.yaml.
// The facilities are folders of this machine; a job trains at its submission, in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/fake_clock.h"
#include "support/temp_dir.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/dtype.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/lora.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
#include "xffl/checkpoint/safetensors.h"
#include "xffl/config/load.h"
#include "xffl/facility/run_models.h"
#include "xffl/job/job_report.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/run/federation.h"

namespace xffl::test {

// The training of a facility: `step` is added to each weight.
struct Training {
  float step = 0.5f;
  int64_t samples = 8, tokens = 8;
  std::chrono::nanoseconds duration{0};  // of the federation's clock
  // The training begins when this facility's update is here, or when this one has a job.
  std::string after{}, after_job_of{};
  submit::JobState state = submit::JobState::kRunning;  // before the job's end
};

// A facility that does not answer.
class DeadSession final : public remote::Session {
 public:
  remote::CommandResult run(const std::vector<std::string>&, const std::string&,
                            std::chrono::milliseconds, std::stop_token) override {
    fail();
  }
  std::optional<remote::FileInfo> stat(const RemotePath&) override { fail(); }
  size_t read(const RemotePath&, uint64_t, std::span<std::byte>) override { fail(); }
  void write(const RemotePath&, uint64_t, std::span<const std::byte>) override { fail(); }
  void sync(const RemotePath&) override { fail(); }
  void rename(const RemotePath&, const RemotePath&) override { fail(); }
  std::vector<std::string> list(const RemotePath&) override { fail(); }
  void make_dirs(const RemotePath&) override { fail(); }
  void remove_tree(const RemotePath&, std::stop_token) override { fail(); }

 private:
  [[noreturn]] static void fail() { throw Error(ErrorKind::kRemote, "the link is down"); }
};

// Calls `accept` at each submission, and `train` when the job's time is over. Jobs then have ended,
// with the status `end`.
class TrainingScheduler final : public submit::Scheduler {
 public:
  using Train = std::function<void(const job::JobSpec&)>;
  using Cancel = std::function<bool(const submit::SubmittedJob&)>;  // whether the job ends
  TrainingScheduler(Train accept, Train train, Cancel cancel, std::function<bool()> begins,
                    submit::JobState before_end, submit::JobStatus end, const Clock& clock,
                    std::chrono::nanoseconds duration)
      : accept_(std::move(accept)),
        train_(std::move(train)),
        cancel_(std::move(cancel)),
        begins_(std::move(begins)),
        before_end_(before_end),
        end_(std::move(end)),
        clock_(clock),
        duration_(duration) {}

  JobId submit(const submit::JobRequest& request, std::stop_token) override {
    const job::JobSpec spec = spec_of(request.folder.str());
    if (on_request) on_request(request);
    accept_(spec);
    if (duration_.count() == 0) train_(spec);
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(request.folder.str(), JobId(std::to_string(100 + jobs_.size())));
    ends_[jobs_.back().second] = clock_.monotonic() + duration_;
    return jobs_.back().second;
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token) override {
    const std::lock_guard lock(mutex_);
    std::vector<JobId> found;
    for (const auto& [folder, id] : jobs_)
      if (folder == request.folder.str()) found.push_back(id);
    return found;
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token) override {
    std::map<JobId, submit::JobStatus> states;
    const std::lock_guard lock(mutex_);
    for (const submit::SubmittedJob& job : jobs) {
      states[job.id] = end_;
      const auto end = ends_.find(job.id);
      if (end == ends_.end()) continue;
      if (!begins_()) end->second = clock_.monotonic() + duration_;
      if (clock_.monotonic() < end->second) {
        states[job.id] = {.state = before_end_};
      } else {
        if (duration_.count() > 0)
          for (const auto& [folder, id] : jobs_)
            if (id == job.id) train_(spec_of(folder));
        ends_.erase(end);
      }
    }
    return states;
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token) override {
    if (!cancel_(job)) return;
    const std::lock_guard lock(mutex_);
    ends_.erase(job.id);
  }
  void release(const submit::KeptAllocation&, std::stop_token) override {
    if (on_release) on_release();
  }
  std::chrono::milliseconds settle_time() const override { return std::chrono::milliseconds(1); }

  std::function<void(const submit::JobRequest&)> on_request;  // called at each submission
  std::function<void()> on_release;  // called at each release of a kept allocation

 private:
  static job::JobSpec spec_of(const std::filesystem::path& folder) {
    return job::read_job_spec(folder / plan::kJobFile);
  }

  const Train accept_, train_;
  const Cancel cancel_;
  const std::function<bool()> begins_;
  const submit::JobState before_end_;
  const submit::JobStatus end_;
  const Clock& clock_;
  const std::chrono::nanoseconds duration_;
  std::mutex mutex_;
  std::map<JobId, Clock::MonotonicTime> ends_;  // of running jobs
  std::vector<std::pair<std::string, JobId>> jobs_;
};

class SmallFederation : public testing::Test {
 protected:
  SmallFederation() {
    log::set_console_level(log::Level::kOff);
    write_model();
  }

  // The text of xffl.yaml with further sections, such as "policy: {quorum: 2}\n".
  static std::string yaml(const std::string& sections, int rounds = 1) {
    const std::string facility = "{trainer: {command: [/bin/true]}, data: {train: [/data/x.tokens]";
    return "project: test\nmodel: model\nrounds: " + std::to_string(rounds) + "\n" + sections +
           (sections.find("training:") == std::string::npos
                ? "training: {steps_per_round: 4, batch_size: 2, micro_batch_size: 2}\n"
                : "") +
           "facilities:\n  alba: " + facility + "}}\n  brno: " + facility +
           ", validation: {it: /data/y.tokens}}}\n";
  }
  // The same with the fixture's further facility and keys.
  std::string whole_yaml(const std::string& sections, int rounds = 1) const {
    std::string text = yaml(sections, rounds);
    if (has_cork_)
      text += "  cork: {trainer: {command: [/bin/true]}, data: {train: [/data/x.tokens]}}\n";
    for (size_t at = 0; (at = text.find("{trainer:", at)) != std::string::npos;
         at += facility_keys_.size() + 1)
      text.insert(at + 1, facility_keys_);
    return text;
  }
  config::Experiment experiment(const std::string& sections, int rounds = 1) const {
    return config::parse_experiment(whole_yaml(sections, rounds), "xffl.yaml", folder_.path());
  }

  run::Outcome run(const std::string& sections, int rounds = 1) {
    return run(experiment(sections, rounds));
  }
  run::Outcome run(const config::Experiment& parsed) {
    facility::Services made = services();
    return run::run_federation(parsed, run_folder(), made, stop_.get_token(), observer_);
  }
  facility::Services services() {
    return {.clock = clock_,
            .connect = [this](const auto& f) { return session_of(f); },
            .connect_transfer = [this](const auto& f) { return session_of(f); },
            .scheduler = [this](const auto& f, auto) { return scheduler_of(f); },
            .programs = {"/bin/true", "/bin/true"}};
  }
  history::RunFolder run_folder() const { return {folder_.path() / "runs", RunName("0001")}; }

  // The jobs that a facility got, in order.
  std::vector<job::JobSpec> jobs_of(const std::string& facility) const {
    std::vector<job::JobSpec> jobs;
    for (const job::JobSpec& job : jobs_)
      if (job.key.facility == facility) jobs.push_back(job);
    return jobs;
  }
  // The folder of a job at its facility.
  static bool has_folder(const job::JobSpec& job) {
    return std::filesystem::exists(std::filesystem::path(job.report_path).parent_path());
  }

  // A weight of the model in `folder`: element `index` of the first tensor, which began as index/8.
  static float weight(const std::filesystem::path& folder, size_t index) {
    const checkpoint::ModelFolder model(folder);
    const checkpoint::TensorSpec& spec = model.tensors().front();
    std::vector<float> values(static_cast<size_t>(spec.num_elements()));
    checkpoint::to_float(model.data(spec.name), spec.dtype, values);
    return values.at(index);
  }
  float master_weight(size_t index, int round = 1) const {
    return weight(run_folder().master(round), index);
  }

  TempDir folder_;
  FakeClock clock_;
  std::stop_source stop_;
  facility::Observer observer_;
  bool has_cork_ = false;      // a third facility
  std::string facility_keys_;  // further keys of each facility, such as "scheduler: process, "
  // Called in a facility's thread, at the beginning of its part of a round.
  std::function<void(const std::string&)> on_begin_;
  // Called at each submission, ahead of on_submit_.
  std::function<void(const submit::JobRequest&)> on_request_;
  std::function<void(const job::JobSpec&)> on_submit_;  // called at each submission
  std::function<bool(const std::string&)> on_cancel_;   // gets the facility; false: the job goes on
  // Gets the facility; called in its thread when its kept allocation is released.
  std::function<void(const std::string&)> on_release_;
  std::function<void(const job::JobSpec&, job::JobReport&)> change_report_;  // before it is written
  std::map<std::string, Training> trainings_;      // by facility; others are the default
  std::map<std::string, submit::JobStatus> ends_;  // the ends of jobs without a report
  std::map<std::string, std::string> rejected_;    // the scheduler's reasons
  std::map<std::string, std::shared_ptr<remote::Session>> sessions_;  // replace local sessions
  // Replaces the schedulers.
  std::function<std::shared_ptr<submit::Scheduler>(const config::Facility&)> make_scheduler_;

  // The federation's input model; element i of a tensor is (i % 8) / 8.
  void write_model(int64_t vocab_size = 16,
                   checkpoint::Dtype norm_dtype = checkpoint::Dtype::kBF16) const {
    const std::vector<checkpoint::TensorSpec> tensors = {
        {"model.embed_tokens.weight", checkpoint::Dtype::kBF16, {vocab_size, 8}},
        {"model.norm.weight", norm_dtype, {8}}};
    checkpoint::ModelWriter writer(folder_ / "model", tensors);
    for (const checkpoint::TensorSpec& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8) / 8.0f;
      write(writer, values, tensor.dtype);
    }
    writer.finish();
    checkpoint::LlamaConfig config;
    config.vocab_size = vocab_size;
    config.hidden_size = config.intermediate_size = config.head_dim = 8;
    config.num_layers = config.num_heads = config.num_kv_heads = 1;
    config.max_position_embeddings = 64;
    write_file_atomic(folder_ / "model/config.json", checkpoint::format_llama_config(config));
  }

  // The job's training: its update and its report.
  void train(const job::JobSpec& spec) {
    const std::string& facility = spec.key.facility;
    if (ends_.contains(facility)) return;  // no report
    job::JobReport report;
    report.key = spec.key;
    report.base_model_sha256 = spec.base_model_sha256;
    report.trainer = "small";
    for (const job::ValidationSet& set : spec.validation)
      report.validation.push_back({set.name, 100, 2.0, 1.0});
    if (spec.training.steps > 0) {
      const Training training =
          trainings_.contains(facility) ? trainings_.at(facility) : Training();
      write_update(spec, training.step);
      report.update_sha256 = checkpoint::read_manifest(spec.update_path).root_sha256();
      report.steps = spec.training.steps;
      report.samples = training.samples;
      report.tokens = training.tokens;
    }
    if (change_report_) change_report_(spec, report);
    write_file_atomic(spec.report_path, job::format_job_report(report));
  }

 private:
  template <class Writer>
  static void write(Writer& writer, const std::vector<float>& values, checkpoint::Dtype dtype) {
    std::vector<std::byte> bytes(values.size() * checkpoint::size_bytes(dtype));
    checkpoint::from_float(values, dtype, bytes);
    writer.write(bytes);
  }

  std::shared_ptr<remote::Session> session_of(const config::Facility& facility) {
    const auto own = sessions_.find(facility.name.str());
    if (own != sessions_.end()) return own->second;
    return remote::make_local_session();
  }
  std::shared_ptr<submit::Scheduler> scheduler_of(const config::Facility& facility) {
    const std::string name = facility.name.str();
    if (on_begin_) on_begin_(name);
    const std::lock_guard lock(mutex_);
    if (make_scheduler_) return make_scheduler_(facility);
    auto& scheduler = schedulers_[name];
    if (!scheduler) {
      const auto end = ends_.find(name);
      const auto own = trainings_.find(name);
      const Training training = own == trainings_.end() ? Training() : own->second;
      const auto made = std::make_shared<TrainingScheduler>(
          [this](const job::JobSpec& spec) { accept(spec); },
          [this](const job::JobSpec& spec) { train(spec); },
          [this, name](const submit::SubmittedJob&) { return !on_cancel_ || on_cancel_(name); },
          [this, training] { return begins(training); }, training.state,
          end == ends_.end() ? submit::JobStatus{.state = submit::JobState::kEnded} : end->second,
          clock_, training.duration);
      made->on_request = [this](const submit::JobRequest& request) {
        const std::lock_guard guard(mutex_);
        if (on_request_) on_request_(request);
      };
      made->on_release = [this, name] {
        if (on_release_) on_release_(name);
      };
      scheduler = made;
    }
    return scheduler;
  }

  bool begins(const Training& training) {
    if (!training.after.empty() &&
        !std::filesystem::exists(run_folder().facility(1, FacilityName(training.after)) /
                                 "report.json"))
      return false;
    const std::lock_guard lock(mutex_);
    return training.after_job_of.empty() || !jobs_of(training.after_job_of).empty();
  }

  void accept(const job::JobSpec& spec) {
    if (const auto reason = rejected_.find(spec.key.facility); reason != rejected_.end())
      throw Error(ErrorKind::kConfig, reason->second);
    const std::lock_guard lock(mutex_);
    jobs_.push_back(spec);
    if (on_submit_) on_submit_(spec);
  }

  // With LoRA the job trains the adapter, else the model.
  static void write_update(const job::JobSpec& spec, float step) {
    const std::filesystem::path base =
        spec.adapter_path.empty() ? spec.base_model_path : spec.adapter_path;
    const std::filesystem::path out = spec.update_path;
    const checkpoint::ModelFolder model(base);
    make_dirs(out);
    std::vector<checkpoint::TensorSpec> tensors = model.tensors();
    for (auto& tensor : tensors) tensor.dtype = facility::dtype_of(spec.update_dtype);
    checkpoint::SafetensorsWriter writer(
        out / (model.is_adapter() ? std::string(checkpoint::kAdapterName) : "model.safetensors"),
        tensors);
    for (const checkpoint::TensorSpec& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      if (spec.update_kind == job::UpdateKind::kWeights)
        checkpoint::to_float(model.data(tensor.name), model.spec(tensor.name).dtype, values);
      for (float& value : values) value += step;
      write(writer, values, tensor.dtype);
    }
    writer.finish();
    const std::string config =
        model.is_adapter() ? std::string(checkpoint::kAdapterConfigName) : "config.json";
    std::filesystem::copy_file(base / config, out / config);
    checkpoint::write_manifest(out);
  }

  std::mutex mutex_;
  std::vector<job::JobSpec> jobs_;
  std::map<std::string, std::shared_ptr<submit::Scheduler>> schedulers_;
};

}  // namespace xffl::test
