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
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/model_folder.h"
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

// Calls `train` at each submission. All submitted jobs have ended, with the status `end`.
class TrainingScheduler final : public submit::Scheduler {
 public:
  using Train = std::function<void(const job::JobSpec&)>;
  TrainingScheduler(Train train, submit::JobStatus end)
      : train_(std::move(train)), end_(std::move(end)) {}

  JobId submit(const submit::JobRequest& request, std::stop_token) override {
    const std::filesystem::path folder = request.folder.str();
    train_(job::read_job_spec(folder / plan::kJobFile));
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(request.folder.str(), JobId(std::to_string(100 + jobs_.size())));
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
    for (const submit::SubmittedJob& job : jobs) states[job.id] = end_;
    return states;
  }
  void cancel(const submit::SubmittedJob&, std::stop_token) override {}
  std::chrono::milliseconds settle_time() const override { return std::chrono::milliseconds(1); }

 private:
  const Train train_;
  const submit::JobStatus end_;
  std::mutex mutex_;
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
    return "project: test\nmodel: model\nrounds: " + std::to_string(rounds) +
           "\ntraining: {steps_per_round: 4, batch_size: 2, micro_batch_size: 2}\n" + sections +
           "facilities:\n  alba: " + facility + "}}\n  brno: " + facility +
           ", validation: {it: /data/y.tokens}}}\n";
  }
  config::Experiment experiment(const std::string& sections, int rounds = 1) const {
    return config::parse_experiment(yaml(sections, rounds), "xffl.yaml", folder_.path());
  }

  run::Outcome run(const std::string& sections, int rounds = 1) {
    const config::Experiment parsed = experiment(sections, rounds);
    facility::Services services{
        .clock = clock_,
        .connect = [this](const auto& f) { return session_of(f); },
        .connect_transfer = [this](const auto& f) { return session_of(f); },
        .scheduler = [this](const auto& f, auto) { return scheduler_of(f); },
        .programs = {"/bin/true", "/bin/true"}};
    return run::run_federation(parsed, run_folder(), services, {});
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
  std::map<std::string, Training> trainings_;      // by facility; others are the default
  std::map<std::string, submit::JobStatus> ends_;  // the ends of jobs without a report
  std::map<std::string, std::string> rejected_;    // the scheduler's reasons
  std::map<std::string, std::shared_ptr<remote::Session>> sessions_;  // replace local sessions

 private:
  void write_model() const {
    const std::vector<checkpoint::TensorSpec> tensors = {
        {"model.embed_tokens.weight", checkpoint::Dtype::kBF16, {16, 8}},
        {"model.norm.weight", checkpoint::Dtype::kBF16, {8}}};
    checkpoint::ModelWriter writer(folder_ / "model", tensors);
    for (const checkpoint::TensorSpec& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8) / 8.0f;
      write(writer, values, tensor.dtype);
    }
    writer.finish();
    checkpoint::LlamaConfig config;
    config.vocab_size = 16;
    config.hidden_size = config.intermediate_size = config.head_dim = 8;
    config.num_layers = config.num_heads = config.num_kv_heads = 1;
    config.max_position_embeddings = 64;
    write_file_atomic(folder_ / "model/config.json", checkpoint::format_llama_config(config));
  }

  static void write(checkpoint::ModelWriter& writer, const std::vector<float>& values,
                    checkpoint::Dtype dtype) {
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
    const std::lock_guard lock(mutex_);
    auto& scheduler = schedulers_[name];
    if (!scheduler) {
      const auto end = ends_.find(name);
      scheduler = std::make_shared<TrainingScheduler>(
          [this](const job::JobSpec& spec) { train(spec); },
          end == ends_.end() ? submit::JobStatus{.state = submit::JobState::kEnded} : end->second);
    }
    return scheduler;
  }

  void train(const job::JobSpec& spec) {
    const std::string& facility = spec.key.facility;
    if (const auto reason = rejected_.find(facility); reason != rejected_.end())
      throw Error(ErrorKind::kConfig, reason->second);
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(spec);
    }
    if (ends_.contains(facility)) return;  // no report
    job::JobReport report;
    report.key = spec.key;
    report.base_model_sha256 = spec.base_model_sha256;
    report.trainer = "small";
    for (const job::ValidationSet& set : spec.validation)
      report.validation.push_back({set.name, 100, 2.0, 1.0});
    if (spec.training.steps > 0) {
      const Training training = trainings_[facility];
      write_update(spec, training.step);
      report.update_sha256 = checkpoint::read_manifest(spec.update_path).root_sha256();
      report.steps = spec.training.steps;
      report.samples = training.samples;
      report.tokens = training.tokens;
    }
    write_file_atomic(spec.report_path, job::format_job_report(report));
  }

  static void write_update(const job::JobSpec& spec, float step) {
    const checkpoint::ModelFolder base(spec.base_model_path);
    std::vector<checkpoint::TensorSpec> tensors = base.tensors();
    for (auto& tensor : tensors) tensor.dtype = facility::dtype_of(spec.update_dtype);
    checkpoint::ModelWriter writer(spec.update_path, tensors);
    for (const checkpoint::TensorSpec& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      if (spec.update_kind == job::UpdateKind::kWeights)
        checkpoint::to_float(base.data(tensor.name), base.spec(tensor.name).dtype, values);
      for (float& value : values) value += step;
      write(writer, values, tensor.dtype);
    }
    writer.finish();
    std::filesystem::copy_file(std::filesystem::path(spec.base_model_path) / "config.json",
                               std::filesystem::path(spec.update_path) / "config.json");
    checkpoint::write_manifest(spec.update_path);
  }

  std::mutex mutex_;
  std::vector<job::JobSpec> jobs_;
  std::map<std::string, std::shared_ptr<submit::Scheduler>> schedulers_;
};

}  // namespace xffl::test
