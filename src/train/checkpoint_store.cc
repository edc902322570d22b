#include "checkpoint_store.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "checkpoint_files.h"
#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 4;
constexpr const char* kPrefix = "step-";
constexpr const char* kBestPrefix = "best-";

std::string numbered(const char* format, int64_t number) {
  char text[64];
  std::snprintf(text, sizeof text, format, static_cast<long long>(number));
  return text;
}

// Identifies a job by the settings that determine the weights. Sharding and similar settings may
// change between two attempts.
std::string fingerprint(job::JobSpec spec) {
  const job::TrainingSpec defaults;
  spec.key.attempt = 1;
  spec.key.nonce = std::string(32, '0');
  spec.adapter_path = spec.adapter_sha256.empty() ? "" : "-";
  spec.optimizer_path = spec.training.keep_optimizer ? "-" : "";
  spec.update_path = spec.report_path = spec.metrics_path = spec.state_path = "-";
  spec.base_model_path = "-";  // the hash identifies the model
  spec.base_model_packed.reset();
  spec.on_stop = job::OnStop::kUpdate;
  job::TrainingSpec& training = spec.training;
  training.sharding = defaults.sharding;
  training.shard_group_size = defaults.shard_group_size;
  training.recompute = defaults.recompute;
  training.offload = defaults.offload;
  training.checkpoint_interval = defaults.checkpoint_interval;
  training.keep_checkpoints = defaults.keep_checkpoints;
  training.deterministic = defaults.deterministic;
  training.pipeline = defaults.pipeline;
  return job::format_job_spec(spec);
}

// The step in a folder's name, or -1.
int64_t step_of(const fs::path& folder, const char* prefix) {
  const std::string name = folder.filename().string();
  const std::string digits = name.substr(std::min(name.size(), std::strlen(prefix)));
  if (!name.starts_with(prefix) || digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoll(digits);
}

// Newest first.
std::vector<int64_t> steps_in(const fs::path& folder, const char* prefix = kPrefix) {
  std::vector<int64_t> steps;
  for (const fs::path& entry : entries_in(folder))
    if (const int64_t step = step_of(entry, prefix); step >= 0) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// The reason why a checkpoint is unusable; empty for a usable one.
std::string problem_of(const fs::path& folder, const std::string& expected) {
  try {
    const Json state = read_checkpoint_json(folder);
    if (state.at("version") != kVersion) return "its format version differs";
    if (state.at("job") != expected) return "it belongs to another job";
    const std::string damaged = damaged_file(folder, state.at("files"));
    return damaged.empty() ? "" : damaged + " is damaged";
  } catch (const std::exception& error) {  // also from the file system and JSON
    return error.what();
  }
}

}  // namespace

CheckpointStore::CheckpointStore(const job::JobSpec& spec, comm::Group& group, at::Device device,
                                 LoadedModel& model, Trainer& trainer, const JobGroups& groups)
    : spec_(spec),
      group_(group),
      device_(device),
      model_(model),
      trainer_(trainer),
      groups_(groups),
      parts_(groups, model) {}

fs::path CheckpointStore::folder(int64_t steps) const {
  return fs::path(spec_.state_path) / (kPrefix + numbered("%08lld", steps));
}

fs::path CheckpointStore::best_folder(int64_t steps) const {
  return fs::path(spec_.state_path) / (kBestPrefix + numbered("%08lld", steps));
}

// With keep_optimizer the next round continues from the best model's moments.
std::vector<UnitBuffers> CheckpointStore::best_buffers() const {
  std::vector<UnitBuffers> all = buffers();
  if (!spec_.training.keep_optimizer) all.resize(1);  // the masters
  return all;
}

std::vector<UnitBuffers> CheckpointStore::buffers() const {
  std::vector<UnitBuffers> all{{"master", {}},
                               {"first", trainer_.optimizer().first_moments()},
                               {"second", trainer_.optimizer().second_moments()}};
  for (const shard::UnitState& state : model_.parameters->states()) {
    all[0].units.push_back(state.master_S);
    if (state.remainder_S.defined()) all[0].remainders.push_back(state.remainder_S);
  }
  for (const UnitBuffers& outer : trainer_.exchange().outer().buffers()) all.push_back(outer);
  return all;
}

Json CheckpointStore::describe(const fs::path& folder, const TrainingState& state,
                               const Json& counts) const {
  return Json{{"version", kVersion},
              {"job", fingerprint(spec_)},
              {"num_parts", parts_.num_parts()},
              {"files", parts_.files(folder)},
              {"counts", counts},
              {"outer_steps", trainer_.exchange().outer().num_steps()},
              {"steps_since_exchange", trainer_.exchange().steps_since()},
              {"best_validation", state.best_validation},
              {"worse_validations", state.worse_validations},
              {"measured_at", state.measured_at},
              {"losses", state.losses},
              {"best_amid", state.best_loss},
              {"best_steps", state.best_steps},
              {"nll_before", state.nll_before},
              {"report", job::format_job_report(state.report)}};
}

// Names this attempt: another attempt may be writing its own temporary folder.
std::string CheckpointStore::temporary_suffix() const {
  return ".a" + std::to_string(spec_.key.attempt) + ".tmp";
}

// Removes temporary folders of this attempt, which was killed while writing and requeued.
void CheckpointStore::remove_incomplete() const {
  std::error_code none;
  for (const fs::path& entry : entries_in(spec_.state_path))
    if (entry.string().ends_with(temporary_suffix())) fs::remove_all(entry, none);
}

void CheckpointStore::remove_old() const {
  std::error_code none;
  const std::vector<int64_t> steps = steps_in(spec_.state_path);
  for (size_t i = static_cast<size_t>(spec_.training.keep_checkpoints); i < steps.size(); ++i)
    fs::remove_all(folder(steps[i]), none);
}

void CheckpointStore::save(const TrainingState& state) {
  const fs::path target = folder(state.report.steps);
  const Json counts = trainer_.gather_counts();
  const CheckpointFolder place{target, target.string() + temporary_suffix()};
  if (group_.rank() == 0) remove_incomplete();
  write_checkpoint(
      group_, device_, place, parts_, buffers(),
      [&] { return describe(place.temporary, state, counts); },
      // A usable checkpoint of the same steps holds the same bits.
      [&] { return problem_of(target, fingerprint(spec_)).empty(); });
  if (group_.rank() != 0) return;
  remove_old();
  remove_old_best(state.best_steps);
}

void CheckpointStore::save_best(const TrainingState& state) {
  const fs::path target = best_folder(state.report.steps);
  const Json counts = trainer_.gather_counts();
  const CheckpointFolder place{target, target.string() + temporary_suffix()};
  if (group_.rank() == 0) remove_incomplete();
  write_checkpoint(group_, device_, place, parts_, best_buffers(),
                   [&] { return describe(place.temporary, state, counts); });
  if (group_.rank() == 0) remove_old_best(state.report.steps);
}

// Keeps the best snapshots that the current state and the kept checkpoints refer to.
void CheckpointStore::remove_old_best(int64_t best_steps) const {
  const std::vector<int64_t> kept = steps_in(spec_.state_path);
  const std::vector<int64_t> all = steps_in(spec_.state_path, kBestPrefix);
  const auto is_best_of = [&](int64_t best, int64_t steps) {
    return best == *std::find_if(all.begin(), all.end(), [&](int64_t b) { return b <= steps; });
  };
  std::error_code none;
  for (const int64_t best : all) {
    if (best == best_steps) continue;
    const bool needed = std::any_of(kept.begin(), kept.end(), [&](int64_t steps) {
      return best <= steps && is_best_of(best, steps);
    });
    if (!needed) fs::remove_all(best_folder(best), none);
  }
}

void CheckpointStore::clear() const {
  std::error_code none;
  fs::remove_all(spec_.state_path, none);
}

// Steps of the newest usable checkpoint, or -1.
int64_t CheckpointStore::newest() const {
  const std::string expected = fingerprint(spec_);
  for (const int64_t steps : steps_in(spec_.state_path)) {
    const std::string problem = problem_of(folder(steps), expected);
    if (problem.empty()) return steps;
    log::warning("checkpoint skipped", {{"path", folder(steps).string()}, {"problem", problem}});
  }
  return -1;
}

void CheckpointStore::read(const fs::path& source, const std::vector<UnitBuffers>& buffers,
                           TrainingState& state) {
  const Json json = read_checkpoint_json(source);
  parts_.read(source, json.at("num_parts").get<int>(), buffers);
  model_.parameters->refresh_compute();
  trainer_.restore_counts(json.at("counts"), json.at("steps_since_exchange").get<int64_t>());
  trainer_.exchange().outer().set_num_steps(json.at("outer_steps").get<int64_t>());
  state.best_validation = json.at("best_validation").get<double>();
  state.worse_validations = json.at("worse_validations").get<int64_t>();
  state.measured_at = json.at("measured_at").get<int64_t>();
  state.losses = json.at("losses").get<std::vector<double>>();
  state.best_loss = json.at("best_amid").get<double>();
  state.best_steps = json.at("best_steps").get<int64_t>();
  state.nll_before = json.at("nll_before").get<std::vector<double>>();
  state.report = job::parse_job_report(json.at("report").get<std::string>(), source.string());
}

bool CheckpointStore::load(TrainingState& state) {
  int64_t steps = -1;
  on_first_rank(group_, device_, [&] { steps = newest(); });
  steps = max_over_ranks(group_, device_, steps);
  if (steps < 0) return false;
  on_all_ranks_without_timeout(group_, device_, [&] { read(folder(steps), buffers(), state); });
  return true;
}

bool CheckpointStore::load_best(TrainingState& state) {
  const fs::path source = best_folder(state.best_steps);
  std::string problem;
  on_first_rank(group_, device_, [&] { problem = problem_of(source, fingerprint(spec_)); });
  if (max_over_ranks(group_, device_, problem.empty() ? 0 : 1) == 1) {
    if (group_.rank() == 0)
      log::warning("best snapshot unusable: the last model is kept",
                   {{"path", source.string()}, {"problem", problem}});
    return false;
  }
  on_all_ranks_without_timeout(group_, device_, [&] { read(source, best_buffers(), state); });
  return true;
}

}  // namespace xffl::train
