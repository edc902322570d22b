// What the commands that work on a project share: where its runs are, and ending on a signal.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/round/run_folder.h"

namespace xffl {

// -p and -w of every command.
struct ProjectOptions {
  std::filesystem::path project = ".";
  std::filesystem::path workdir;  // empty: the project's folder
  std::string run;                // empty: the newest

  std::filesystem::path runs() const;
  /// The run named or the newest. Throws kNotFound when there is none.
  round::RunFolder existing_run() const;
};

/// Requests a stop on the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once
/// (exit code 130). One at a time.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  std::stop_token token() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xffl
