#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "watch.h"
#include "xffl/status/status.h"

namespace xffl {
namespace {

void show_status(const ProjectOptions& options, bool json) {
  const history::RunFolder folder = options.existing_run();
  const config::Experiment experiment = experiment_of(options, folder);
  status::RunStatus status = status::read_status(
      folder.path(), experiment.rounds, json ? status::Rounds::kAll : status::Rounds::kNewest);
  if (!status.run_state.completed && !status.run_state.cancelled)
    status.credentials = ending_credentials(experiment);
  std::fputs((json ? status::format_status_json(status) : status::format_status(status)).c_str(),
             stdout);
}

}  // namespace

void add_status_commands(CLI::App& app, const Colours& colours) {
  struct State {
    ProjectOptions options;
    bool json = false;
    int watch_seconds = 0;  // 0: not given
    WatchOptions live;
    const Colours* colours = nullptr;
  };
  auto state = std::make_shared<State>();
  state->colours = &colours;
  CLI::App* status_command = app.add_subcommand("status", "show the progress of a run");
  add_project_options(status_command, state->options);
  status_command->add_flag("--json", state->json, "print JSON");
  CLI::Option* watch =
      status_command
          ->add_option("--watch", state->watch_seconds,
                       "show the run until its coordinator ends, with the exit code of `xffl "
                       "attach`; looks every SECONDS")
          ->expected(0, 1)
          ->default_str("2")
          ->check(CLI::Range(1, 3600));
  status_command->callback([state, watch] {
    if (watch->count() == 0) return show_status(state->options, state->json);
    if (state->watch_seconds > 0) state->live.interval = std::chrono::seconds(state->watch_seconds);
    state->live.json = state->json;
    state->live.colours = *state->colours;
    watch_run(state->options, state->live);
  });

  CLI::App* attach_command =
      app.add_subcommand("attach", "follow a run that another process coordinates");
  add_project_options(attach_command, state->options);
  attach_command->callback([state] {
    state->live.ends_with_status = true;
    state->live.colours = *state->colours;
    watch_run(state->options, state->live);
  });
}

}  // namespace xffl
