#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "command_tree.h"
#include "commands.h"
#include "doctor.h"
#include "project.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/clock.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/history/store.h"
#include "xffl/trial/trial.h"
#include "xffl/upkeep/local_retention.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using Severity = CheckResult::Severity;

// Finds before submission the faults that a job would report only after its time in the queue.
std::vector<CheckResult> check_model(const config::Experiment& experiment) {
  std::vector<CheckResult> results;
  for (const std::string& missing : config::find_missing(experiment))
    results.push_back({Severity::kError, "file", missing, "put it there, or correct xffl.yaml"});
  const bool exists = std::none_of(results.begin(), results.end(), [](const CheckResult& result) {
    return result.message.starts_with("model:") || result.message.starts_with("adapter:");
  });
  if (!exists) return results;
  const auto builtin = [](const config::Facility& facility) {
    return facility.trainer_command.empty();
  };
  try {
    if (std::any_of(experiment.facilities.begin(), experiment.facilities.end(), builtin))
      checkpoint::read_llama_config(experiment.model);
    else
      parse_json(read_file(experiment.model / "config.json", 1 << 20),
                 (experiment.model / "config.json").string());
    facility::model_bytes(experiment, experiment.model);
    results.push_back({Severity::kOk, "model", experiment.model.string(), ""});
  } catch (const Error& error) {
    results.push_back({Severity::kError, "model", error.what(),
                       "copy the model again, or correct 'model' in xffl.yaml"});
  }
  return results;
}

fs::path nearest_existing(fs::path folder) {
  std::error_code unknown;
  while (!fs::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

// Compares the free bytes with the forecast for the whole run. A disk that suffices for a round
// gives a warning only, because a user may move old rounds away.
CheckResult check_run_space(const config::Experiment& experiment, const facility::ModelBytes& bytes,
                            const fs::path& folder, uint64_t free) {
  const upkeep::RoundsOnDisk rounds = upkeep::rounds_on_disk(experiment.policy, experiment.rounds);
  const uint64_t needed =
      bytes.on_disk(rounds.models, rounds.updates, rounds.masters, experiment.facilities.size());
  const std::string message = folder.string() + ": " + gigabytes(needed) + " for " +
                              std::to_string(experiment.rounds) + " rounds, " + gigabytes(free) +
                              " free";
  if (needed <= free) return {Severity::kOk, "space for the run", message, ""};
  return {Severity::kWarning, "space for the run", message,
          "set policy.keep_models and policy.keep_updates, or use a larger disk (`--workdir`)"};
}

// Checks folders, free space, model and trainer of this machine. `runs` is the present or future
// folder of runs; it need not exist. Reads the headers of the model's files, not their tensors.
std::vector<CheckResult> check_machine(const config::Experiment& experiment, const fs::path& runs,
                                       const facility::Services& services) {
  std::vector<CheckResult> results = check_model(experiment);
  const std::string file_system = history::network_file_system(runs);
  const fs::path folder = nearest_existing(runs);
  if (!file_system.empty())
    results.push_back(
        {Severity::kError, "runs folder", folder.string() + " is on " + file_system,
         "put runs/ on a local disk (`--workdir` of all commands): a journal is not safe there"});
  else
    results.push_back({Severity::kOk, "runs folder", folder.string(), ""});
  std::error_code none;
  const fs::space_info info = fs::space(folder, none);
  const auto bytes = bytes_of_model(experiment);
  if (bytes && !none)
    results.push_back(check_free_space(folder.string(), info.available,
                                       bytes->here(experiment.facilities.size())));
  if (bytes && !none)
    results.push_back(check_run_space(experiment, *bytes, folder, info.available));
  if (fs::exists(services.programs.trainer))
    results.push_back({Severity::kOk, "trainer", services.programs.trainer.string(), ""});
  return results;
}

// Prints the results and returns the number of errors.
int show(const std::string& title, const std::vector<CheckResult>& results) {
  std::printf("%s\n", title.c_str());
  for (const CheckResult& result : results) {
    constexpr const char* kLabels[] = {"ok     ", "warning", "FAILED "};
    std::printf("  %s %-16s %s\n", kLabels[static_cast<int>(result.severity)], result.check.c_str(),
                log::printable(result.message, 1000).c_str());
    if (!result.fix.empty()) std::printf("          -> %s\n", result.fix.c_str());
  }
  std::fflush(stdout);
  return static_cast<int>(std::count_if(results.begin(), results.end(), [](const CheckResult& r) {
    return r.severity == CheckResult::Severity::kError;
  }));
}

void doctor(const ProjectOptions& options, const std::vector<std::string>& names) {
  const config::Experiment experiment = config::load_experiment(options.project);
  SystemClock clock;
  facility::Services services = facility::make_services(
      clock, experiment.project_folder, login_prompt(), facility::kPatientConnection);
  int num_errors = show("this machine", check_machine(experiment, options.runs(), services));
  for (const std::string& name : names) experiment.facility(FacilityName(name));
  for (const config::Facility& facility : experiment.facilities)
    if (names.empty() || std::find(names.begin(), names.end(), facility.name.str()) != names.end())
      num_errors += show(facility.name.str(), check_facility(experiment, facility, services));
  if (num_errors > 0)
    throw Error(ErrorKind::kFailed,
                std::to_string(num_errors) + " checks failed; the lines with -> name the fixes");
  std::printf("all checks passed\n");
}

struct JobFlags {
  std::string facility;  // empty: no job
  trial::Options options;
  int minutes = 15;
  bool yes = false, json = false;
};

// Shows what the job may cost, and asks on a terminal; without one only --yes agrees.
void confirm_job(const config::Facility& facility, const JobFlags& flags,
                 const submit::JobShape& shape) {
  const std::string name = facility.name.str();
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(shape.walltime).count();
  const std::string cost =
      minutes > 0 ? std::to_string(shape.nodes) + " nodes for at most " + std::to_string(minutes) +
                        " minutes: " + std::to_string(shape.nodes * minutes) + " node-minutes"
                  : "ranks of this machine: " + std::to_string(shape.tasks_per_node);
  log::info("the check job takes " + cost, {{"facility", name}});
  if (flags.yes) return;
  const std::string command = "xffl doctor --job " + name + " --yes";
  if (!is_interactive())
    throw Error(ErrorKind::kUsage, "the check job takes " + cost +
                                       ": without a terminal to ask, repeat with `" + command +
                                       "`");
  require_yes("submit the check job at " + name + " (" + cost + ")?", command,
              "nothing was submitted");
}

void print_job_json(const std::string& facility, const trial::Kept& kept) {
  Json json = parse_json(trial::format_kept(kept), "checks");
  constexpr const char* kNames[] = {"ok", "warning", "error"};
  for (Json& result : json["results"]) result["severity"] = kNames[result["severity"].get<int>()];
  json["facility"] = facility;
  std::printf("%s\n", json.dump(2).c_str());
}

void doctor_job(const ProjectOptions& options, const JobFlags& flags) {
  const config::Experiment experiment = config::load_experiment(options.project);
  const config::Facility& facility = experiment.facility(FacilityName(flags.facility));
  StopOnSignal signals("the command stops, and cancels its job");
  SystemClock clock;
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  trial::Options job = flags.options;
  job.walltime = std::chrono::minutes(flags.minutes);
  job.version = XFFL_VERSION;
  const submit::JobShape shape = trial::job_shape(facility, services.programs, job).shape();
  const trial::Callbacks callbacks{.confirm = [&] { confirm_job(facility, flags, shape); },
                                   .on_state =
                                       [&](const std::string& message) {
                                         log::info(message, {{"facility", flags.facility}});
                                       }};
  const trial::Kept kept =
      trial::check_by_job(experiment, facility, services, job, signals.token(), callbacks);
  if (flags.json) print_job_json(flags.facility, kept);
  const auto is_error = [](const CheckResult& each) { return each.severity == Severity::kError; };
  const auto num_errors = flags.json
                              ? std::count_if(kept.results.begin(), kept.results.end(), is_error)
                              : show(flags.facility + ", job " + kept.job, kept.results);
  if (num_errors > 0)
    throw Error(ErrorKind::kFailed,
                std::to_string(num_errors) + " checks failed; the lines with -> name the fixes");
  if (!flags.json) std::printf("all checks passed\n");
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  struct Flags {
    ProjectOptions options;
    std::vector<std::string> facilities;
    JobFlags job;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "check this machine and every facility before a run; submits a job only with --job");
  add_project_options(command, flags->options);
  command->add_option("facility", flags->facilities, "only these (default: all)")
      ->type_name(kFacilityType);
  CLI::Option* job = command
                         ->add_option("--job", flags->job.facility,
                                      "submit one short job at this facility, and check with it")
                         ->type_name(kFacilityType);
  command->add_option("--nodes", flags->job.options.nodes, "at most so many nodes for the job")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->needs(job);
  command->add_option("--minutes", flags->job.minutes, "the job's walltime")
      ->check(CLI::Range(2, 24 * 60))
      ->capture_default_str()
      ->needs(job);
  command->add_flag("-y,--yes", flags->job.yes, "submit the job without a question")->needs(job);
  command->add_flag("--json", flags->job.json, "print the job's results as JSON")->needs(job);
  command->callback([flags] {
    if (flags->job.facility.empty()) return doctor(flags->options, flags->facilities);
    if (!flags->facilities.empty())
      throw Error(ErrorKind::kUsage, "--job names the facility: expected no other one");
    doctor_job(flags->options, flags->job);
  });
}

}  // namespace xffl
