// What the commands that work on a project share: where its runs are, and ending on a signal.
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
}

namespace xffl {

// -p and -w of every command.
struct ProjectOptions {
  std::filesystem::path project = ".";
  std::filesystem::path workdir;  // empty: the project's folder
  std::string run;                // empty: the newest

  std::filesystem::path runs() const;
  /// The run named or the newest. Throws kNotFound when there is none.
  history::RunFolder existing_run() const;
};

/// -p, -w and --run of a command.
void add_project_options(CLI::App* command, ProjectOptions& options);

/// What the run works with now: its config.resolved.yaml.
config::Experiment experiment_of(const ProjectOptions& options, const history::RunFolder& folder);

/// Throws kNotFound, with what to do, unless the model and the adapter that round 1 starts from are
/// there.
void require_model(const config::Experiment& experiment);

/// Requests a stop on the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once
/// (exit code 130). One at a time.
class StopOnSignal {
 public:
  /// `words` are said on the first signal.
  explicit StopOnSignal(std::string words = "detaching; jobs at the facilities go on");
  /// What has not come to its end so long after the first signal is left as it is, with the exit
  /// code of kCancelled: for work that a kill at any instant does not harm.
  explicit StopOnSignal(std::chrono::seconds patience);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  std::stop_token token() const;

 private:
  StopOnSignal(std::string words, std::optional<std::chrono::seconds> patience);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl
