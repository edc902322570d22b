#include "xffl/trial/trial.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <sstream>

#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/facility/job_script.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/facility/side_job.h"

namespace xffl::trial {

std::span<const EmbeddedFile> trial_scripts();  // generated

namespace {

constexpr int kKeptSchema = 1;
constexpr uint64_t kMaxKeptBytes = 1 << 20, kMaxModelConfig = 1 << 20;
constexpr int64_t kCheckSteps = 3;  // the first one warms up
constexpr int kMostCheckedRanks = 1024;
constexpr size_t kHashDigits = 8;  // of a folder's name
constexpr int kKeptFolders = 3;    // of jobs with the same settings, and of settings

// A line of `environment`, which runs outside of the image: programs such as scancel are missing
// inside. It sends the warning like node.sh, which then does not. Elsewhere than in Slurm's script
// it stands in the script of each rank.
constexpr const char* kSignalFromOutside =
    R"sh(export XFFL_CHECK_SIGNAL=outside; if [ "${rank:-0}" = 0 ]; then )sh"
    R"sh((while kill -0 $$ && [ ! -e out/awaits-signal ]; do sleep 0.2; done; )sh"
    R"sh(if [ -n "${SLURM_JOB_ID:-}" ]; then scancel --batch --signal=USR1 "$SLURM_JOB_ID"; )sh"
    R"sh(else kill -USR1 "$PPID"; fi) >/dev/null 2>&1 </dev/null & fi)sh";

std::string node_file(int rank) { return "out/node-" + std::to_string(rank) + ".txt"; }

std::string model_config(const config::Experiment& experiment) {
  return read_file(experiment.model / "config.json", kMaxModelConfig);
}

// The facility's training as a few steps, with the same work for a rank as in a round.
job::JobSpec check_spec(const config::Facility& facility, int ranks) {
  job::JobSpec spec;
  spec.key = {"check", "0000", 1, facility.name.str(), 1, std::string(32, '0')};
  spec.base_model_path = "model";
  spec.base_model_sha256 = std::string(64, '0');
  spec.train_paths = facility.train_data;
  spec.validation = facility.validation;
  spec.update_path = "out/update";
  spec.report_path = "out/report.json";
  spec.metrics_path = "out/metrics.jsonl";
  spec.state_path = "state";
  spec.training = facility.training;
  job::TrainingSpec& training = spec.training;
  const int64_t all = std::max(1, facility.world_size);
  training.batch_size = std::max<int64_t>(1, (training.batch_size * ranks + all - 1) / all);
  training.steps = kCheckSteps;
  training.epochs = 0;
  training.total_rounds = 0;
  training.first_step = 0;
  training.max_tokens = 0;
  training.checkpoint_interval = 0;
  training.validation_interval = training.early_stop_patience = 0;
  // A whole set takes longer than the check's walltime; a batch of each rank is read as the set is.
  const int64_t few = ranks * (training.validation_batch_size > 0 ? training.validation_batch_size
                                                                  : training.micro_batch_size);
  training.validation_samples =
      training.validation_samples > 0 ? std::min(training.validation_samples, few) : few;
  training.keep_optimizer = false;
  return spec;
}

class Trial {
 public:
  Trial(const config::Experiment& experiment, const config::Facility& facility,
        facility::Services& services, const Options& options, std::stop_token stop,
        const Callbacks& callbacks)
      : experiment_(experiment),
        facility_(facility),
        services_(services),
        callbacks_(callbacks),
        version_(options.version),
        shape_(job_shape(facility, services.programs, options)),
        settings_(settings_hash(experiment, facility, services.programs)),
        job_(facility, experiment.poll_interval(facility), services, place(), std::move(stop),
             callbacks.on_state) {}

  Kept run() {
    const auto earlier = find_kept(experiment_, facility_.name);
    const bool was_seen =
        earlier && earlier->settings_sha256 == settings_ && earlier->job_number == job_.number();
    const bool is_under_way = job_.is_under_way();  // first: a job may report between the two
    const bool is_unseen = !was_seen && !is_under_way && job_.has_report();
    if (!is_unseen && !is_under_way) {
      if (callbacks_.confirm) callbacks_.confirm();
      submit();
    }
    if (!is_unseen) follow();
    const Found found = collect();
    const Expected expected = this->expected();
    Kept kept{.utc = format_utc(services_.clock.utc()),
              .settings_sha256 = settings_,
              .job = job_.id().str(),
              .job_number = job_.number(),
              .nodes = shape_.shape().nodes,
              .ranks = shape_.world_size,
              .validation = validation_sizes(expected, found),
              .results = judge(expected, found)};
    if (found.report) {
      kept.step_seconds = found.report->step_seconds;
      kept.step_tokens = found.report->step_tokens;
    }
    make_dirs(kept_file(experiment_, facility_.name).parent_path());
    write_file_atomic(kept_file(experiment_, facility_.name), format_kept(kept));
    remove_old_folders();
    return kept;
  }

 private:
  // Nobody waits for the results of a stopped command, so its job should cost nothing more.
  void follow() {
    try {
      job_.follow([&] { return is_done(); });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCancelled) throw;
      try {
        job_.cancel();
      } catch (const Error& failure) {
        throw Error(ErrorKind::kCancelled, "stopped; job " + job_.id().str() +
                                               " was not cancelled and may go on (" +
                                               failure.what() + "); the same command follows it");
      }
      throw Error(ErrorKind::kCancelled, "stopped; job " + job_.id().str() + " is cancelled");
    }
  }

  facility::SidePlace place() const {
    const std::string name = facility_.name.str() + "-" + settings_.substr(0, kHashDigits);
    return {.parent = facility_.workdir / "xffl.checks" / (experiment_.project.str() + "." + name),
            .name = "xffl-check-" + name,
            .report = std::string(job::kCheckReport)};
  }

  // Keeps the last folders of jobs, and of settings. Best effort: they cost space only.
  void remove_old_folders() {
    try {
      remote::Session& session = job_.session();
      session.remove_tree(job_.folder() / "model");  // of a job that failed
      const RemotePath parent = job_.folder().parent(), checks = parent.parent();
      for (int number = job_.number() - kKeptFolders; number > 0; --number) {
        const RemotePath old = parent / ("job" + std::to_string(number));
        if (!session.stat(old)) break;
        session.remove_tree(old);
      }
      const auto newest_first =
          session.run({"ls", "-1t", "--", checks.str()}, "", std::chrono::seconds(60), {});
      const std::string own = parent.filename();
      const std::string prefix = own.substr(0, own.size() - kHashDigits);
      std::istringstream lines(newest_first.out);
      int found = 0;
      for (std::string name; std::getline(lines, name);) {
        if (!name.starts_with(prefix) || name.size() != own.size() ||
            name.find_first_not_of("0123456789abcdef", prefix.size()) != std::string::npos)
          continue;
        if (++found > kKeptFolders && name != own) session.remove_tree(checks / name);
      }
    } catch (const Error& error) {
      log::debug("old folders of checks stay", {{"problem", error.what()}});
    }
  }

  void submit() {
    std::string paths;
    for (const std::vector<std::string>& some :
         {node_paths(facility_), facility::site_libraries(facility_)})
      for (const std::string& path : some) paths += path + "\n";
    std::vector<remote::NewFile> files{
        {"config/", ""},
        {"out/", ""},
        {std::string(job::kCheckConfig), model_config(experiment_)},
        {"node.sh", std::string(trial_scripts().front().text)},
        {"paths.txt", paths},
        {"job.json", job::format_job_spec(facility::for_compute_nodes(
                         facility_, check_spec(facility_, shape_.world_size)))}};
    job_.submit(shape_, std::move(files));
  }

  bool is_done() { return job_.has_report(); }

  Found collect() {
    Found found;
    const int per_node = std::max(1, shape_.shape().tasks_per_node);
    const int ranks = std::min(shape_.world_size, kMostCheckedRanks);
    std::vector<remote::FileQuery> queries{{std::string(job::kCheckReport), job::kMaxCheckBytes},
                                           {std::string(job::kCheckProgress), job::kMaxCheckBytes}};
    for (int rank = 0; rank < ranks; ++rank) {
      queries.push_back({job::rank_check_file(rank), job::kMaxCheckBytes});
      if (rank % per_node != 0) continue;
      queries.push_back({node_file(rank), kMaxNodeFacts});
      queries.push_back({job::nccl_log_file(rank), kMaxNcclLog});
    }
    const std::vector<remote::FileView> views = job_.session().look(job_.folder(), queries);
    for (size_t i = 0; i < queries.size() && i < views.size(); ++i) {
      const std::string& name = queries[i].name;
      const std::string& bytes = views[i].bytes;
      if (bytes.empty()) continue;
      try {
        if (name == job::kCheckReport || name == job::kCheckProgress) {
          if (!found.report) found.report = job::parse_check_report(bytes, name);
        } else if (name.starts_with("out/rank-"))
          found.ranks.push_back(job::parse_rank_check(bytes, name));
        else if (name.starts_with("out/node-"))
          found.nodes.push_back(parse_node_facts(bytes));
        else
          found.nccl.push_back(parse_nccl_log(bytes));
      } catch (const Error& error) {
        found.unreadable.push_back(error.what());
      }
    }
    if (!found.report || !found.report->complete) found.output = job_.last_output();
    return found;
  }

  Expected expected() {
    const submit::JobShape shape = shape_.shape(), round = facility_.shape();
    const checkpoint::LlamaConfig model = checkpoint::read_llama_config(experiment_.model);
    Expected expected{.facility = facility_.name.str(),
                      .version = version_,
                      .arch = {},
                      .queue_manager = std::string(facility_.scheduler.manager().name),
                      .nodes = shape.nodes,
                      .ranks = shape_.world_size,
                      .gpus_per_node = shape.gpus_per_node,
                      .own_trainer = !facility_.trainer_command.empty(),
                      .has_image = !facility_.image.file.empty(),
                      .paths = node_paths(facility_),
                      .libraries = facility::site_libraries(facility_),
                      .prepared = facility_.on_compute_nodes(facility_.prepared.str()),
                      .vocab_size = model.vocab_size,
                      .max_positions = model.max_position_embeddings,
                      .steps_per_round = facility_.training.steps,
                      .validation_samples = facility_.training.validation_samples,
                      .round_nodes = round.nodes,
                      .round_ranks = facility_.world_size,
                      .walltime = round.walltime,
                      .warning = round.warning,
                      .resumes = experiment_.policy.on_walltime == config::OnWalltime::kResume};
    for (const job::ValidationSet& set : facility_.validation)
      expected.validation.push_back(facility_.on_compute_nodes(set.path));
    try {
      const auto answer = job_.session().run({"uname", "-m"}, "", std::chrono::seconds(30), {});
      if (answer.exit_code == 0)
        expected.arch = log::printable(answer.out.substr(0, answer.out.find('\n')), 40);
    } catch (const Error&) {
      expected.arch.clear();  // a facility without commands
    }
    try {
      expected.needed_bytes = facility::model_bytes(experiment_, experiment_.model).at_facility();
    } catch (const Error&) {
      expected.needed_bytes = 0;  // another check of `doctor` reports the model
    }
    return expected;
  }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  facility::Services& services_;
  const Callbacks& callbacks_;
  const std::string version_;
  const config::Facility shape_;
  const std::string settings_;
  facility::SideJob job_;
};

Json result_json(const CheckResult& result) {
  return {{"severity", static_cast<int>(result.severity)},
          {"check", result.check},
          {"message", result.message},
          {"fix", result.fix}};
}

SetSize read_size(const Json& json, const std::string& where) {
  JsonObject object(json, where);
  const SetSize size{.sequences = object.integer("sequences", 0),
                     .sequence_length = object.integer("sequence_length", 0)};
  object.reject_unknown_keys();
  return size;
}

CheckResult read_result(const Json& json, const std::string& where) {
  JsonObject object(json, where);
  CheckResult result{
      .severity = static_cast<CheckResult::Severity>(object.integer("severity", 0, 2)),
      .check = object.string("check"),
      .message = object.string("message"),
      .fix = object.string("fix")};
  object.reject_unknown_keys();
  return result;
}

}  // namespace

config::Facility job_shape(const config::Facility& facility, const facility::Programs& programs,
                           const Options& options) {
  config::Facility shape = facility;
  const submit::QueueManager& manager = shape.scheduler.manager();
  if (manager.shorten != nullptr) manager.shorten(shape.scheduler, options.nodes, options.walltime);
  const submit::JobShape job = shape.shape();
  if (!manager.this_machine) shape.world_size = job.nodes * job.tasks_per_node;
  shape.may_requeue = false;
  if (!facility.image.file.empty()) shape.environment.emplace_back(kSignalFromOutside);
  shape.trainer_command = {"sh", "node.sh"};
  if (facility.trainer_command.empty()) {
    shape.trainer_command.push_back(
        facility.on_compute_nodes(facility::trainer_program(facility, programs)));
    shape.trainer_command.push_back("check");
  }
  return shape;
}

std::vector<std::string> node_paths(const config::Facility& facility) {
  std::vector<std::string> paths{facility.on_compute_nodes(facility.workdir.str())};
  for (const std::string& shard : facility.train_data)
    paths.push_back(facility.on_compute_nodes(shard));
  for (const job::ValidationSet& set : facility.validation)
    paths.push_back(facility.on_compute_nodes(set.path));
  return paths;
}

std::string settings_hash(const config::Experiment& experiment, const config::Facility& facility,
                          const facility::Programs& programs) {
  job::JobSpec spec = check_spec(facility, facility.world_size);
  spec.training.schedule = {};
  const std::string script =
      facility::job_script(facility, spec, "check", facility.workdir, programs, std::nullopt);
  return sha256_hex(script + job::format_job_spec(spec) + model_config(experiment));
}

std::filesystem::path kept_file(const config::Experiment& experiment,
                                const FacilityName& facility) {
  return experiment.project_folder / "checks" / (facility.str() + ".json");
}

std::string format_kept(const Kept& kept) {
  Json json{{"schema", kKeptSchema},
            {"utc", kept.utc},
            {"settings_sha256", kept.settings_sha256},
            {"job", kept.job},
            {"job_number", kept.job_number},
            {"nodes", kept.nodes},
            {"ranks", kept.ranks},
            {"step_seconds", kept.step_seconds},
            {"step_tokens", kept.step_tokens},
            {"results", Json::array()}};
  for (const SetSize& set : kept.validation)
    json["validation"].push_back(
        Json{{"sequences", set.sequences}, {"sequence_length", set.sequence_length}});
  for (const CheckResult& result : kept.results) json["results"].push_back(result_json(result));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Kept parse_kept(std::string_view text, const std::string& origin) {
  const Json parsed = parse_json(text, origin, {.max_bytes = kMaxKeptBytes, .max_depth = 4});
  JsonObject object(parsed, origin);
  if (const int64_t found = object.integer("schema"); found != kKeptSchema)
    object.fail_unsupported("schema", std::to_string(found), std::to_string(kKeptSchema));
  Kept kept{.utc = object.string("utc"),
            .settings_sha256 = object.string("settings_sha256"),
            .job = object.string("job"),
            .job_number = static_cast<int>(object.integer("job_number", 0, 1'000'000)),
            .nodes = static_cast<int>(object.integer("nodes", 0, 1'000'000)),
            .ranks = static_cast<int>(object.integer("ranks", 0, 1'000'000)),
            .step_seconds = object.number("step_seconds"),
            .step_tokens = object.number("step_tokens"),
            .results = {}};
  const Json& results = object.at("results");
  if (!results.is_array()) object.fail("results", "is not a list");
  for (const Json& result : results) kept.results.push_back(read_result(result, origin));
  if (object.has("validation"))
    for (const Json& set : object.at("validation"))
      kept.validation.push_back(read_size(set, origin));
  object.reject_unknown_keys();
  return kept;
}

std::optional<Kept> find_kept(const config::Experiment& experiment, const FacilityName& facility) {
  const std::filesystem::path file = kept_file(experiment, facility);
  if (!std::filesystem::exists(file)) return std::nullopt;
  return parse_kept(read_file(file, kMaxKeptBytes), file.string());
}

std::string describe_kept(const config::Experiment& experiment, const config::Facility& facility,
                          const facility::Programs& programs) {
  const auto kept = find_kept(experiment, facility.name);
  if (!kept) return "";
  const std::string day = log::printable(kept->utc.substr(0, 10), 20);
  const submit::JobShape shape = facility.shape();
  const int64_t steps = facility.training.steps;  // 0: a round has epochs
  const auto speed =
      round_speed(kept->step_seconds, kept->step_tokens, std::max<int64_t>(1, steps), shape.nodes);
  std::string text;
  if (!speed) {
    text =
        "the check job of " + day + " measured no steps: xffl doctor --job " + facility.name.str();
  } else {
    char measured[100];
    std::snprintf(measured, sizeof measured, "measured %.0f tokens/s on ",
                  speed->tokens_per_second);
    text = measured + day;
    const double rate = speed->tokens_per_second * facility.world_size / std::max(1, kept->ranks);
    const double validation =
        validation_hours(kept->validation, facility.training.validation_samples, rate);
    if (steps > 0)
      text += ": " + forecast_round(*speed, steps, validation, shape.walltime, shape.warning).text;
  }
  if (kept->settings_sha256 != settings_hash(experiment, facility, programs))
    text += "; the configuration has changed since: xffl doctor --job " + facility.name.str();
  return text;
}

Kept check_by_job(const config::Experiment& experiment, const config::Facility& facility,
                  facility::Services& services, const Options& options, std::stop_token stop,
                  const Callbacks& callbacks) {
  return Trial(experiment, facility, services, options, std::move(stop), callbacks).run();
}

}  // namespace xffl::trial
