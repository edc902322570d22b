// Shared by the commands of a project: the folder of its runs, and the end on a signal.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/history/run_folder.h"

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

/// Throws kNotFound, with the fix, unless the model and the adapter of round 1 exist.
void require_model(const config::Experiment& experiment);

/// Requests a stop on the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once
/// (exit code 130). Only one instance at a time.
class StopOnSignal {
 public:
  /// Prints `message` on the first signal. With `patience`, ends the process, with the exit code of
  /// kCancelled, if it still runs this long after the first signal. `patience` is for work that
  /// survives a kill at any instant.
  explicit StopOnSignal(std::string message = "detaching; jobs at the facilities keep running",
                        std::optional<std::chrono::seconds> patience = {});
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  std::stop_token token() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `xffl run --detach`. Starts `xffl run` in a session of its own, and returns when that process
/// holds the run or has completed it. Throws the error that the process ended with. `name` is the
/// run that the process continues, or the new run with `fresh`. The process writes its output to
/// runs/detached-<name>.out.
void run_detached(const ProjectOptions& options, const RunName& name, bool fresh,
                  bool network_allowed);

}  // namespace xffl
