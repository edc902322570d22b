#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/status/status.h"

namespace xffl {
namespace {

ErrorKind parse_error_kind(std::string_view name) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kFailed); ++kind)
    if (to_string(static_cast<ErrorKind>(kind)) == name) return static_cast<ErrorKind>(kind);
  return ErrorKind::kFailed;
}

// Throws the error that the run's last coordinator ended with.
void check_end(const status::RunStatus& status) {
  const std::string run = "run " + status.folder.filename().string();
  if (status.run_state.completed) return;
  if (status.run_state.cancelled) throw Error(ErrorKind::kFailed, run + " was cancelled");
  const auto& stopped = status.run_state.stopped;
  if (!stopped)
    throw Error(ErrorKind::kFailed, "the coordinator of " + run +
                                        " ended without a reason (killed, or the machine "
                                        "crashed): continue with `xffl run`");
  throw Error(parse_error_kind(stopped->kind), run + " stopped at " + stopped->time_utc + ": " +
                                                   log::printable(stopped->reason, 4000));
}

// Shows the status of a run until its coordinator ends.
void attach(const ProjectOptions& options) {
  const history::RunFolder folder = options.existing_run();
  const config::Experiment experiment = experiment_of(options, folder);
  StopOnSignal signals("leaving; the coordinator continues");
  SystemClock clock;
  std::string shown;
  for (;;) {
    const status::RunStatus status = status::read_status(folder.path(), experiment.rounds);
    const std::string text = status::format_status(status);
    if (text != shown) std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    shown = text;
    if (status.coordinator.empty()) return check_end(status);
    if (!clock.sleep(std::chrono::seconds(2), signals.token())) return;
  }
}

}  // namespace

void add_attach_command(CLI::App& app) {
  auto options = std::make_shared<ProjectOptions>();
  CLI::App* command = app.add_subcommand("attach", "follow a run that another process coordinates");
  add_project_options(command, *options);
  command->callback([options] { attach(*options); });
}

}  // namespace xffl
