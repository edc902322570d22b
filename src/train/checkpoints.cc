#include "checkpoints.h"

#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>

#include "checkpoint_json.h"
#include "rank_sync.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kPrefix = "step-";
constexpr const char* kBestPrefix = "best-";
constexpr const char* kTemporary = ".tmp";

// The pauses between the tries to read a checkpoint.
constexpr std::chrono::milliseconds kRetryPauses[] = {250ms, 500ms, 1000ms};

// No attempt writes to a temporary folder so seldom.
constexpr std::chrono::hours kAbandonedAfter{1};

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
  training.validation_batch_size = defaults.validation_batch_size;
  training.attention = defaults.attention;
  return job::format_job_spec(spec);
}

// A fingerprint with the names of the data files only, and without the validation's size: the keys
// compute_mounts and validation_samples may change between two attempts. Checkpoints of earlier
// releases have both.
Json without_folders(const std::string& fingerprint) {
  Json json = parse_json(fingerprint, "the checkpoint's job");
  const auto shorten = [](Json& path) {
    path = fs::path(path.get<std::string>()).filename().string();
  };
  for (Json& path : json.at("train_paths")) shorten(path);
  for (Json& set : json.at("validation")) shorten(set.at("path"));
  Json& training = json.at("training");
  if (training.at("early_stop_patience") == 0) training["validation_samples"] = 0;
  return json;
}

// Returns the step in a folder's name, or -1.
int64_t step_of(const fs::path& folder, const char* prefix) {
  const std::string name = folder.filename().string();
  const std::string digits = name.substr(std::min(name.size(), std::strlen(prefix)));
  if (!name.starts_with(prefix) || digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoll(digits);
}

// Calls `read` again if it throws kIo: a fault of a shared file system often lasts a moment.
template <class Read>
auto with_retries(const Read& read) {
  for (const auto pause : kRetryPauses) {
    try {
      return read();
    } catch (const std::exception& error) {
      if (translated(error).kind() != ErrorKind::kIo) throw;
    }
    std::this_thread::sleep_for(pause);
  }
  return read();
}

// Steps of the folders, newest first. Throws kIo.
std::vector<int64_t> steps_in(const fs::path& folder, const char* prefix = kPrefix) {
  std::vector<int64_t> steps;
  for (const fs::path& entry : entries_in(folder))
    if (const int64_t step = step_of(entry, prefix); step >= 0) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// Returns the reason why a folder is unusable; empty for a usable folder. `check` finds a reason in
// the folder's state.json. After further tries a bad sector is damage. Throws kIo if the file
// system does not answer otherwise.
std::string problem_of(const fs::path& folder,
                       const std::function<std::string(const Json& state)>& check) {
  const auto find_problem = [&]() -> std::string {
    const Json state = read_checkpoint_json(folder);
    if (const std::string problem = check(state); !problem.empty()) return problem;
    const std::string damaged = damaged_file(folder, state.at("files"));
    return damaged.empty() ? "" : damaged + " is damaged";
  };
  try {
    return with_retries(find_problem);
  } catch (const std::exception& caught) {  // also from the file system and JSON
    const Error error = translated(caught);
    const bool is_damage = dynamic_cast<const UnreadableFile*>(&caught) != nullptr;
    if (error.kind() == ErrorKind::kIo && !is_damage) throw error;
    return error.what();
  }
}

// Returns the reason of problem_of(), also for a folder that cannot be read.
std::string problem_or_error(const std::function<std::string()>& find_problem) {
  try {
    return find_problem();
  } catch (const Error& error) {
    return error.what();
  }
}

// Returns the reason why a checkpoint is unusable. Throws kIo as problem_of() does.
std::string checkpoint_problem(const fs::path& folder, const job::JobSpec& spec) {
  return problem_of(folder, [&](const Json& state) -> std::string {
    const bool is_same =
        without_folders(state.at("job").get<std::string>()) == without_folders(fingerprint(spec));
    return is_same ? "" : "it belongs to another job";
  });
}

// Calls `visit(key, member)` for the fields of a state.json.
template <class State, class Visit>
void visit_fields(State& state, const Visit& visit) {
  visit("best_validation", state.best_validation);
  visit("worse_validations", state.worse_validations);
  visit("measured_at", state.measured_at);
  visit("losses", state.scores.nll);
  visit("best_amid", state.best_loss);
  visit("best_steps", state.best_steps);
  visit("nll_before", state.before.nll);
}

// Later fields, which the checkpoints of earlier releases lack.
template <class State, class Visit>
void visit_optional_fields(State& state, const Visit& visit) {
  visit("accuracies", state.scores.accuracy);
  visit("accuracy_before", state.before.accuracy);
}

Json state_json(const TrainingState& state, const job::JobSpec& spec, int64_t steps_since) {
  Json json{{"version", kCheckpointVersion},
            {"job", fingerprint(spec)},
            {"steps_since_exchange", steps_since},
            {"report", job::format_job_report(state.report)}};
  const auto write = [&](const char* key, const auto& value) { json[key] = value; };
  visit_fields(state, write);
  visit_optional_fields(state, write);
  return json;
}

// Whether nobody has written to a temporary folder for an hour. Throws kIo.
bool is_abandoned(const fs::path& folder) {
  std::vector<fs::path> paths = entries_in(folder);
  paths.push_back(folder);
  const auto oldest = fs::file_time_type::clock::now() - kAbandonedAfter;
  return std::all_of(paths.begin(), paths.end(), [&](const fs::path& path) {
    std::error_code error;
    return fs::last_write_time(path, error) < oldest && !error;
  });
}

// Removes old files by `body`. The next checkpoint tries again after an error.
void best_effort(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
  }
}

// Identifies the trained parameters and their places in the buffers.
std::string layout_hash(const LoadedModel& model) {
  Json places = Json::array();
  // A layout of all stages; a parameter's place does not depend on the number of shards.
  const shard::FlatLayout layout(flat_parameters_of(model.specs), 1);
  for (size_t i = 0; i < model.specs.size(); ++i) {
    const shard::Place& place = layout.places().at(i);
    places.push_back(Json{model.specs[i].name, place.unit, place.offset, place.shape});
  }
  return sha256_hex(places.dump());
}

// Returns the round in a folder's name "r0002-...", or -1.
int round_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const size_t end = name.find('-');
  if (!name.starts_with('r') || end == std::string::npos) return -1;
  int round = -1;
  const auto [last, error] = std::from_chars(name.data() + 1, name.data() + end, round);
  return error == std::errc() && last == name.data() + end ? round : -1;
}

}  // namespace

fs::path Checkpoints::folder(const char* prefix, int64_t steps) const {
  char name[64];
  std::snprintf(name, sizeof name, "%s%08lld", prefix, static_cast<long long>(steps));
  return fs::path(spec_.state_path) / name;
}

// The buffers of the best model's snapshot. With keep_optimizer the next round continues from the
// best model's moments.
std::vector<UnitBuffers> Checkpoints::best_buffers() const {
  std::vector<UnitBuffers> all = buffers();
  if (!spec_.training.keep_optimizer) all.resize(1);  // the masters
  return all;
}

void Checkpoints::append_moments(std::vector<UnitBuffers>& all) const {
  shard::Optimizer& optimizer = trainer_.optimizer();
  if (!optimizer.first_moments().empty()) all.push_back({"first", optimizer.first_moments()});
  if (!optimizer.second_moments().empty()) all.push_back({"second", optimizer.second_moments()});
}

std::vector<UnitBuffers> Checkpoints::buffers() const {
  std::vector<UnitBuffers> all{{"master", {}}};
  append_moments(all);
  for (const shard::UnitState& state : model_.parameters->states()) {
    all[0].units.push_back(state.master_S);
    if (state.remainder_S.defined()) all[0].remainders.push_back(state.remainder_S);
  }
  for (const UnitBuffers& outer : trainer_.exchange().outer().buffers()) all.push_back(outer);
  return all;
}

// All buffers but the masters and the outer optimizer's anchor, which both equal the job's input
// model.
std::vector<UnitBuffers> Checkpoints::optimizer_buffers() const {
  std::vector<UnitBuffers> all;
  append_moments(all);
  for (const UnitBuffers& outer : trainer_.exchange().outer().buffers())
    if (outer.name != "anchor") all.push_back(outer);
  return all;
}

fs::path Checkpoints::own_optimizer_folder() const {
  return fs::path(spec_.optimizer_path).parent_path() / spec_.key.optimizer_state_name();
}

// A suffix that names this attempt: another attempt may be writing its own temporary folder.
std::string Checkpoints::temporary_suffix() const {
  return ".a" + std::to_string(spec_.key.attempt) + kTemporary;
}

// Removes temporary folders of attempts that were killed while writing: this attempt's, which was
// requeued, and abandoned ones of other attempts.
void Checkpoints::remove_incomplete() const {
  std::error_code none;
  for (const fs::path& entry : entries_in(spec_.state_path)) {
    const std::string name = entry.filename().string();
    if (name.ends_with(temporary_suffix()) || (name.ends_with(kTemporary) && is_abandoned(entry)))
      fs::remove_all(entry, none);
  }
}

// Unusable checkpoints of other jobs may have more steps than `newest`, the one that was just
// saved: they do not count, else it would be removed at once.
void Checkpoints::remove_old(int64_t newest) const {
  std::error_code none;
  std::vector<int64_t> steps = steps_in(spec_.state_path);
  std::erase_if(steps, [&](int64_t each) { return each > newest; });
  for (size_t i = static_cast<size_t>(spec_.training.keep_checkpoints); i < steps.size(); ++i)
    fs::remove_all(folder(kPrefix, steps[i]), none);
}

void Checkpoints::write(const fs::path& target, const std::string& suffix,
                        const std::vector<UnitBuffers>& buffers,
                        const std::function<Json()>& description,
                        const std::function<bool()>& may_stay) const {
  const Json counts = trainer_.gather_counts();
  const CheckpointFolder place{target, target.string() + suffix};
  const auto document = [&] {
    Json json = description();
    json["num_parts"] = parts_.num_parts();
    json["files"] = parts_.files(place.temporary);
    json["counts"] = counts;
    json["outer_steps"] = trainer_.exchange().outer().num_steps();
    return json;
  };
  write_checkpoint(group_, device_, place, parts_, buffers, document, may_stay);
}

void Checkpoints::save(const TrainingState& state) {
  const fs::path target = folder(kPrefix, state.report.steps);
  if (group_.rank() == 0) best_effort([&] { remove_incomplete(); });
  write(
      target, temporary_suffix(), buffers(),
      [&] { return state_json(state, spec_, trainer_.exchange().steps_since()); },
      // A usable checkpoint of the same steps holds the same bits.
      [&] { return problem_or_error([&] { return checkpoint_problem(target, spec_); }).empty(); });
  if (group_.rank() != 0) return;
  best_effort([&] {
    remove_old(state.report.steps);
    remove_old_best(state.best_steps);
  });
}

void Checkpoints::save_best(const TrainingState& state) {
  if (group_.rank() == 0) best_effort([&] { remove_incomplete(); });
  write(folder(kBestPrefix, state.report.steps), temporary_suffix(), best_buffers(),
        [&] { return state_json(state, spec_, trainer_.exchange().steps_since()); });
  if (group_.rank() == 0) best_effort([&] { remove_old_best(state.report.steps); });
}

// Keeps the best snapshots that the current state and the kept checkpoints refer to.
void Checkpoints::remove_old_best(int64_t best_steps) const {
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
    if (!needed) fs::remove_all(folder(kBestPrefix, best), none);
  }
}

void Checkpoints::clear() const {
  std::error_code none;
  // The coordinator has abandoned a fenced attempt: a later one may need the checkpoints.
  const fs::path attempt = fs::path(spec_.report_path).parent_path().parent_path();
  if (fs::exists(attempt / "claim" / "fenced", none)) return;
  fs::remove_all(spec_.state_path, none);
}

// Returns the steps of the newest usable checkpoint, or -1. Throws kIo if no checkpoint is usable
// and one cannot be read: a later attempt may read it, and a training from the start would replace
// it.
int64_t Checkpoints::newest() const {
  std::optional<Error> unreadable;
  for (const int64_t steps : with_retries([&] { return steps_in(spec_.state_path); })) {
    const fs::path path = folder(kPrefix, steps);
    std::string problem;
    try {
      problem = checkpoint_problem(path, spec_);
    } catch (const Error& error) {
      unreadable = error;
      problem = error.what();
    }
    if (problem.empty()) return steps;
    log::warning("checkpoint skipped", {{"path", path.string()}, {"problem", problem}});
  }
  if (!unreadable) return -1;
  unreadable->add_context("no checkpoint can be read");
  throw *unreadable;
}

// Reads `buffers` and the counts of the optimizer; returns the content of state.json.
Json Checkpoints::read(const fs::path& source, const std::vector<UnitBuffers>& buffers) const {
  Json json = read_checkpoint_json(source);
  parts_.read(source, json.at("num_parts").get<int>(), buffers);
  trainer_.restore_counts(json.at("counts"));
  trainer_.exchange().outer().set_num_steps(json.at("outer_steps").get<int64_t>());
  return json;
}

void Checkpoints::read_state(const fs::path& source, const std::vector<UnitBuffers>& buffers,
                             TrainingState& state) const {
  const Json json = read(source, buffers);
  model_.parameters->refresh_compute();
  trainer_.exchange().set_steps_since(json.at("steps_since_exchange").get<int64_t>());
  const auto read_field = [&](const char* key, auto& value) { json.at(key).get_to(value); };
  visit_fields(state, read_field);
  visit_optional_fields(state, [&](const char* key, auto& value) {
    if (json.contains(key)) read_field(key, value);
  });
  state.report = job::parse_job_report(json.at("report").get<std::string>(), source.string());
}

// Returns whether rank 0 finds `folder` usable; collective.
bool Checkpoints::is_usable(const fs::path& folder, const char* warning, std::string& problem,
                            const std::function<std::string()>& find_problem) const {
  on_first_rank(group_, device_, [&] { problem = problem_or_error(find_problem); });
  if (max_over_ranks(group_, device_, problem.empty() ? 0 : 1) == 0) return true;
  if (group_.rank() == 0) log::warning(warning, {{"path", folder.string()}, {"problem", problem}});
  return false;
}

bool Checkpoints::load(TrainingState& state) {
  int64_t steps = -1;
  on_first_rank(group_, device_, [&] { steps = newest(); });
  steps = max_over_ranks(group_, device_, steps);
  if (steps < 0) return false;
  on_all_ranks_without_timeout(group_, device_,
                               [&] { read_state(folder(kPrefix, steps), buffers(), state); });
  return true;
}

bool Checkpoints::load_best(TrainingState& state) {
  const fs::path source = folder(kBestPrefix, state.best_steps);
  std::string problem;
  if (!is_usable(source, "best snapshot unusable: the last model is kept", problem,
                 [&] { return checkpoint_problem(source, spec_); }))
    return false;
  on_all_ranks_without_timeout(group_, device_, [&] { read_state(source, best_buffers(), state); });
  return true;
}

Json Checkpoints::optimizer_description() const {
  Json json{{"version", kOptimizerStateVersion},
            {"project", spec_.key.project},
            {"run", spec_.key.run},
            {"facility", spec_.key.facility},
            {"layout", layout_hash(model_)},
            {"groups", groups_.count()},
            {"outer", job::to_string(spec_.training.groups.outer.kind)}};
  // AdamW and Adam have the same moments.
  if (spec_.training.optimizer == job::OptimizerKind::kSgd)
    json["optimizer"] = spec_.training.momentum > 0 ? "sgd with momentum" : "sgd";
  return json;
}

// Returns the reason why an optimizer state is unusable.
std::string Checkpoints::optimizer_problem(const fs::path& folder) const {
  return problem_of(folder, [&](const Json& state) -> std::string {
    const Json expected = optimizer_description();
    const Json& found = state.at("of");
    if (found.value("optimizer", "") != expected.value("optimizer", ""))
      return "its optimizer differs";
    for (const auto& [key, value] : expected.items())
      if (found.at(key) != value) return "its " + key + " differs";
    if (state.at("round") != spec_.key.round - 1) return "it is not from the previous round";
    return state.at("name") != folder.filename().string() ? "it is from another attempt" : "";
  });
}

std::string Checkpoints::load_optimizer() {
  const fs::path source(spec_.optimizer_path);
  if (source.empty() || source.filename() == job::kNoOptimizerState) return "";
  std::string problem;
  if (!is_usable(source, "optimizer state unusable: training starts with zero moments", problem,
                 [&] { return optimizer_problem(source); }))
    return log::printable(problem, job::kMaxReasonBytes / 2);  // and "..."
  on_all_ranks_without_timeout(group_, device_, [&] { read(source, optimizer_buffers()); });
  if (group_.rank() == 0)
    log::info("optimizer state of the previous round loaded",
              {{"steps", trainer_.optimizer().num_steps()}});
  return "";
}

// An attempt of an earlier round may still run and must not remove the states of later rounds.
void Checkpoints::remove_old_optimizers() const {
  std::error_code none;
  for (const fs::path& entry : entries_in(own_optimizer_folder().parent_path())) {
    const int round = round_of(entry);
    if (round >= 0 && round < spec_.key.round - 1) fs::remove_all(entry, none);
  }
}

void Checkpoints::save_optimizer() const {
  if (spec_.optimizer_path.empty()) return;
  const fs::path target = own_optimizer_folder();
  try {
    write(target, ".tmp", optimizer_buffers(), [&] {
      return Json{{"of", optimizer_description()},
                  {"round", spec_.key.round},
                  {"name", target.filename().string()}};
    });
    if (group_.rank() == 0) best_effort([&] { remove_old_optimizers(); });
  } catch (const std::exception& caught) {
    const Error error = translated(caught);
    if (error.kind() == ErrorKind::kCancelled) throw error;
    if (group_.rank() == 0) log::warning("optimizer state not saved", {{"problem", error.what()}});
  }
}

}  // namespace xffl::train
