#include "project.h"

#include <CLI/CLI.hpp>

#include "command_tree.h"
#include "credentials.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/history/store.h"

namespace xffl {

std::filesystem::path ProjectOptions::runs() const {
  return std::filesystem::absolute(workdir.empty() ? project : workdir) / "runs";
}

history::RunFolder ProjectOptions::existing_run() const {
  const auto latest = history::latest_run(runs());
  if (!run.empty()) {
    const history::RunFolder named(runs(), RunName(run));
    std::error_code unknown;
    if (!std::filesystem::exists(named.journal(), unknown))
      throw Error(ErrorKind::kNotFound, "run " + run + " does not exist in " + runs().string() +
                                            (latest ? "; the newest is " + latest->str() : "") +
                                            ": `xffl run -p " + project.string() +
                                            " --new` starts a new run");
    return named;
  }
  if (!latest)
    throw Error(ErrorKind::kNotFound, "no run exists in " + runs().string() +
                                          ": start one with `xffl run -p " + project.string() +
                                          "`");
  return history::RunFolder(runs(), *latest);
}

CLI::Option* add_project_options(CLI::App* command, ProjectOptions& options) {
  command
      ->add_option("-p,--project", options.project,
                   "the folder with xffl.yaml (default: this folder)")
      ->type_name(kFolderType);
  command
      ->add_option("-w,--workdir", options.workdir,
                   "the folder of runs/ (default: the project's folder)")
      ->type_name(kFolderType);
  return command->add_option("--run", options.run, "the run, such as 0003 (default: the newest)")
      ->type_name(kRunType);
}

config::Experiment experiment_of(const ProjectOptions& options, const history::RunFolder& folder) {
  return config::parse_experiment(read_file(folder.config(), 4 << 20), folder.config(),
                                  std::filesystem::absolute(options.project));
}

std::string trace_of(const history::RunFolder& folder) {
  std::string trace;
  for (const std::filesystem::path& path :
       {folder.journal(), std::filesystem::path(folder.journal().string() + "-wal"), folder.live(),
        folder.accounting(), folder.verification()}) {
    std::error_code absent;
    trace += std::to_string(std::filesystem::file_size(path, absent)) + " ";
    trace +=
        std::to_string(std::filesystem::last_write_time(path, absent).time_since_epoch().count()) +
        " ";
  }
  return trace + history::lock_holder(folder.journal());
}

std::string open_jobs(const history::RunState& run_state, const config::Facility& facility) {
  std::string jobs;
  const auto add = [&](const std::string& job) { jobs += (jobs.empty() ? "" : ", ") + job; };
  for (const auto& [number, round] : run_state.rounds) {
    const auto part = round.facilities.find(facility.name);
    if (part == round.facilities.end()) continue;
    const std::string in_round = " of round " + std::to_string(number);
    const bool is_open = !round.published && !part->second.accepted && !part->second.missing;
    for (const history::Attempt& attempt : part->second.attempts) {
      if (!attempt.cancel_intended && (!is_open || attempt.failure)) continue;
      if (!attempt.job_id.empty())
        add("job " + log::printable(attempt.job_id, 100) + in_round);
      else if (attempt.submit_intended)
        add("a job" + in_round + " whose submission is unconfirmed");
    }
    if (part->second.accepted && number == run_state.rounds.rbegin()->first &&
        facility.shape().keep_allocation.count() > 0)
      add("the kept allocation" + in_round);
  }
  return jobs;
}

bool may_have_coordinator(const history::RunFolder& folder) {
  try {
    return !history::lock_holder(folder.journal()).empty();
  } catch (const std::exception&) {
    return true;
  }
}

void RepeatedProblem::warn(const std::string& message, const std::string& problem) {
  const auto now = std::chrono::steady_clock::now();
  if (problem == last_ && now - logged_ < std::chrono::minutes(1)) return;
  last_ = problem;
  logged_ = now;
  log::warning(message, {{"problem", problem}});
}

report::RunStory story_of(const ProjectOptions& options, const history::RunFolder& folder) {
  const config::Experiment experiment = experiment_of(options, folder);
  report::StoryContext context;
  context.version = XFFL_VERSION;
  context.rounds_planned = experiment.rounds;
  context.gpus = usage::gpus_per_node(experiment);
  context.now = SystemClock().utc();
  context.credentials = ending_credentials(experiment);
  return report::collect_story(folder, context);
}

void require_model(const config::Experiment& experiment) {
  for (const std::string& missing : config::find_missing(experiment))
    if (missing.starts_with("model:") || missing.starts_with("adapter:"))
      throw Error(ErrorKind::kNotFound,
                  missing + "; correct it in xffl.yaml, or put a Hugging Face folder there");
}

void check_file_system(const std::filesystem::path& folder, bool allowed) {
  const std::string kind = history::network_file_system(folder);
  if (kind.empty()) return;
  if (!allowed)
    throw Error(
        ErrorKind::kUnsupported,
        folder.string() + " is on a network file system (" + kind +
            "), where file locks are not reliable: put runs/ on a local disk with "
            "--workdir, or give --allow-network-fs and start this run from one machine only");
  log::warning("the journal is on a network file system: start this run from one machine only",
               {{"folder", folder.string()}, {"kind", kind}});
}

RunName run_to_continue(const ProjectOptions& options, bool fresh) {
  if (!options.run.empty()) return options.existing_run().run();
  const auto newest = history::latest_run(options.runs());
  return newest && !fresh ? *newest : history::next_run(options.runs());
}

}  // namespace xffl
