#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "round_display.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/history/store.h"
#include "xffl/observe/observers.h"
#include "xffl/status/status.h"

namespace xffl {
namespace {

// The open jobs of a run that has not ended. Empty also for damaged files: a new run needs none of
// them.
std::string jobs_of_unfinished(const ProjectOptions& options,
                               const history::RunFolder& folder) try {
  const history::RunState run_state = history::read_newest(folder.journal());
  if (run_state.completed || run_state.cancelled) return "";
  std::string all;
  for (const config::Facility& facility : experiment_of(options, folder).facilities)
    if (const std::string jobs = open_jobs(run_state, facility); !jobs.empty())
      all += (all.empty() ? "" : "; ") + facility.name.str() + ": " + jobs;
  return all;
} catch (const std::exception&) {
  return "";
}

// Both runs cost node-hours, and `xffl status` shows only the newer run.
void warn_of_unfinished(const ProjectOptions& options) {
  const auto newest = history::latest_run(options.runs());
  if (!newest) return;
  const history::RunFolder folder(options.runs(), *newest);
  const std::string cancel = "xffl cancel --run " + newest->str();
  const std::string holder = history::lock_holder(folder.journal());
  if (!holder.empty())
    log::warning("another run of this project is still active",
                 {{"run", newest->str()}, {"coordinator", holder}, {"end_it_with", cancel}});
  else if (const std::string jobs = jobs_of_unfinished(options, folder); !jobs.empty())
    log::warning("jobs of an unfinished run go on at the facilities",
                 {{"run", newest->str()}, {"jobs", jobs}, {"end_them_with", cancel}});
}

// Writes the reason of the end to the log file only: main() prints the reason on the terminal.
template <class Body>
auto logging_its_end(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const ErrorKind kind = known == nullptr ? ErrorKind::kInternal : known->kind();
    log::set_console_level(log::Level::kOff);
    if (kind == ErrorKind::kCancelled)
      log::info("the run has stopped on request; jobs at the facilities keep running");
    else if (kind == ErrorKind::kBusy)  // the log belongs to another coordinator
      log::warning("a second coordinator of this run was refused", {{"reason", error.what()}});
    else
      log::error("the run has ended", {{"kind", to_string(kind)}, {"reason", error.what()}});
    throw;
  }
}

// A facility takes up to 20 descriptors with a jump host and further connections, and the usual
// soft limit is 1024. Jobs on this machine and hooks inherit the new limit. Some programs close all
// possible descriptors when they start: a limit of a million would cost them seconds.
void raise_descriptor_limit() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

observe::Settings observers_of(const config::Experiment& experiment) {
  return {.observe = experiment.observe,
          .hooks = experiment.hooks,
          .project_folder = experiment.project_folder,
          .project = experiment.project.str(),
          .version = XFFL_VERSION,
          .rounds_planned = experiment.rounds,
          .credentials = [experiment] { return ending_credentials(experiment); }};
}

void run_here(const ProjectOptions& options, bool fresh) {
  const config::Experiment experiment = config::load_experiment(options.project);
  const RunName name = run_to_continue(options, fresh);
  const history::RunFolder folder(options.runs(), name);
  raise_descriptor_limit();
  if (!std::filesystem::exists(folder.global(0)))
    require_model(experiment);  // a later round starts from the run's own model
  make_dirs(folder.path());
  log::set_file(folder.log());
  SystemClock clock;
  StopOnSignal signals("detaching; jobs at the facilities keep running", std::chrono::seconds(8));
  ::signal(SIGPIPE, SIG_IGN);  // the run outlives the reader of its output
  facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt(signals.token()));
  log::info("run", {{"project", experiment.project.str()},
                    {"run", name.str()},
                    {"folder", folder.path().string()}});
  observe::Observers observers(observers_of(experiment), folder, signals.token());
  const run::Outcome outcome = logging_its_end([&] {
    RoundDisplay display(experiment.rounds, folder.live());
    facility::Observer observer = display.observer();
    observer.on_begin = [&](int64_t epoch) { observers.begin(epoch); };
    return run::run_federation(experiment, folder, services, signals.token(), observer);
  });
  std::printf("run %s: %d of %d rounds published\nmodel: %s\nsha256: %s\n", name.str().c_str(),
              outcome.rounds_published, experiment.rounds, outcome.model.c_str(),
              outcome.model_sha256.c_str());
  std::fputs(status::format_global_losses(folder.journal()).c_str(), stdout);
}

}  // namespace

void add_run_command(CLI::App& app) {
  struct State {
    ProjectOptions options;
    bool fresh = false, detached = false, network_allowed = false;
  };
  auto state = std::make_shared<State>();
  CLI::App* command =
      app.add_subcommand("run", "run the federation, or continue the newest run where it stopped");
  CLI::Option* name = add_project_options(command, state->options);
  command->add_flag("--new", state->fresh, "start another run")->excludes(name);
  command->add_flag("--detach", state->detached, "run in the background, without this terminal");
  command->add_flag("--allow-network-fs", state->network_allowed,
                    "accept runs/ on NFS, Lustre, ...; start the run from one machine only");
  command->callback([state] {
    const auto& [options, fresh, detached, network_allowed] = *state;
    check_file_system(options.runs(), network_allowed);
    if (fresh) warn_of_unfinished(options);
    if (detached)
      run_detached(options, run_to_continue(options, fresh), fresh, network_allowed);
    else
      run_here(options, fresh);
  });
}

}  // namespace xffl
