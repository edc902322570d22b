// Shared by the commands of a project: the folder of its runs.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/report/run_story.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace xffl {

// The values of -p, -w and --run.
struct ProjectOptions {
  std::filesystem::path project = ".";
  std::filesystem::path workdir;  // empty: the project's folder
  std::string run;                // empty: the newest

  std::filesystem::path runs() const;
  /// The run named `run`, or the newest run. Throws kNotFound when the run does not exist.
  history::RunFolder existing_run() const;
};

/// Adds -p, -w and --run to a command, and returns --run.
CLI::Option* add_project_options(CLI::App* command, ProjectOptions& options);

/// The present configuration of a run: its config.resolved.yaml.
config::Experiment experiment_of(const ProjectOptions& options, const history::RunFolder& folder);

/// A value that changes with the run: the sizes and times of its files, and its coordinator. Costs
/// little: a command that follows a run reads the journal only after a change.
std::string trace_of(const history::RunFolder& folder);

/// The jobs that a cancellation of the run ends at a facility: "job 4103 of round 1, ..."; empty:
/// none.
std::string open_jobs(const history::RunState& run_state, const config::Facility& facility);

/// False when no coordinator has the run. True also when the disk with the lock does not answer.
bool may_have_coordinator(const history::RunFolder& folder);

/// The problem of a look that is repeated.
class RepeatedProblem {
 public:
  /// Logs a new problem at once, and the same one each minute.
  void warn(const std::string& message, const std::string& problem);
  /// After a look without a problem.
  void clear() { last_.clear(); }

 private:
  std::string last_;
  std::chrono::steady_clock::time_point logged_{};
};

/// The story of a run up to now, with the certificates that end soon.
report::RunStory story_of(const ProjectOptions& options, const history::RunFolder& folder);

/// Throws kNotFound, with the fix, unless the model and the adapter of round 1 exist.
void require_model(const config::Experiment& experiment);

/// The newest run, or the run of --run; the name of a new run when there is none, and with `fresh`.
RunName run_to_continue(const ProjectOptions& options, bool fresh);

/// Throws kUnsupported, unless `allowed`, for a folder of runs on a network file system, where two
/// coordinators on two machines could both hold a journal's lock.
void check_file_system(const std::filesystem::path& runs, bool allowed);

/// `xffl run --detach`. Starts `xffl run` in a session of its own, and returns when that process
/// holds the run or has completed it. Throws the error that the process ended with. `name` is the
/// run that the process continues, or the new run with `fresh`. The process writes its output to
/// runs/detached-<name>.out.
void run_detached(const ProjectOptions& options, const RunName& name, bool fresh,
                  bool network_allowed);

}  // namespace xffl
