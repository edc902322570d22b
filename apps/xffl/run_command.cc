#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

#include "commands.h"
#include "project.h"
#include "round_display.h"
#include "terminal.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/live_line.h"
#include "xffl/base/log.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"
#include "xffl/history/file_system.h"
#include "xffl/history/status_file.h"
#include "xffl/history/store.h"
#include "xffl/status/status.h"
#include "xffl/status/validation.h"

namespace xffl {
namespace {

// Two coordinators on two machines must not both believe that the journal is theirs.
void check_file_system(const std::filesystem::path& folder, bool allowed) {
  const std::string kind = history::network_file_system(folder);
  if (kind.empty()) return;
  if (!allowed)
    throw Error(
        ErrorKind::kUnsupported,
        folder.string() + " is on a network file system (" + kind +
            "), where the journal's locks cannot be trusted: put runs/ on a local disk with "
            "--workdir, or say --allow-network-fs and start this run from one machine only");
  log::warning("the journal is on a network file system: start this run from one machine only",
               {{"folder", folder.string()}, {"kind", kind}});
}

// The run that is continued or begun.
RunName name_of_run(const ProjectOptions& options, bool fresh) {
  if (!options.run.empty()) return options.existing_run().run();
  const auto newest = history::latest_run(options.runs());
  return newest && !fresh ? *newest : history::next_run(options.runs());
}

// Both cost node-hours, and `xffl status` shows the newer one only.
void warn_of_another(const ProjectOptions& options) {
  const auto newest = history::latest_run(options.runs());
  if (!newest) return;
  const std::string holder =
      history::lock_holder(history::RunFolder(options.runs(), *newest).journal());
  if (!holder.empty())
    log::warning("another run of this project goes on beside the new one",
                 {{"run", newest->str()},
                  {"coordinator", holder},
                  {"end_it_with", "xffl cancel --run " + newest->str()}});
}

// The log is where people look after days; on the terminal main says it.
template <class Body>
auto logging_its_end(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    log::set_console_level(log::Level::kOff);
    if (error.kind() == ErrorKind::kCancelled)
      log::info("the run has stopped on request; jobs at the facilities go on");
    else if (error.kind() == ErrorKind::kBusy)  // somebody else's log
      log::warning("another coordinator was refused", {{"reason", error.what()}});
    else
      log::error("the run has ended",
                 {{"kind", to_string(error.kind())}, {"reason", error.what()}});
    throw;
  } catch (const std::exception& error) {
    log::set_console_level(log::Level::kOff);
    log::error("the run has ended", {{"kind", "internal"}, {"reason", error.what()}});
    throw;
  }
}

void run_here(const ProjectOptions& options, bool fresh, bool network_allowed) {
  check_file_system(options.runs(), network_allowed);
  const config::Experiment experiment = config::load_experiment(options.project);
  if (fresh) warn_of_another(options);
  const RunName name = name_of_run(options, fresh);
  const history::RunFolder folder(options.runs(), name);
  if (!std::filesystem::exists(folder.global(0))) require_model(experiment);  // else it has its own
  make_dirs(folder.path());
  log::set_file(folder.log());
  SystemClock clock;
  StopOnSignal signals(std::chrono::seconds(8));
  ::signal(SIGPIPE, SIG_IGN);  // whoever read what this prints may leave, the run goes on
  facility::Services services = facility::make_services(clock, experiment.project_folder,
                                                        person_at_terminal(signals.token()));
  log::info("run", {{"project", experiment.project.str()},
                    {"run", name.str()},
                    {"folder", folder.path().string()}});
  const run::Outcome outcome = logging_its_end([&] {
    RoundDisplay display(experiment.rounds, folder.live());
    return run::run_federation(experiment, folder, services, signals.token(), display.observer());
  });
  std::printf("run %s: %d of %d rounds published\nmodel: %s\nsha256: %s\n", name.str().c_str(),
              outcome.rounds_published, experiment.rounds, outcome.model.c_str(),
              outcome.model_sha256.c_str());
  const history::RunState run_state = history::replay(history::read_events(folder.journal()));
  std::fputs(status::format_global_losses(run_state).c_str(), stdout);
}

// The process has the run, and whoever looks finds one.
bool holds(const history::RunFolder& folder, pid_t pid) {
  return history::lock_holder(folder.journal()).starts_with("pid " + std::to_string(pid) + " ") &&
         std::filesystem::exists(folder.journal()) &&
         !history::read_events(folder.journal()).empty();
}

// The kind of error that an `xffl` ended with.
ErrorKind kind_of_exit(int status) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kFailed); ++kind)
    if (WIFEXITED(status) && exit_code(static_cast<ErrorKind>(kind)) == WEXITSTATUS(status))
      return static_cast<ErrorKind>(kind);
  return ErrorKind::kFailed;
}

// What an `xffl` said of its error: from its line to the end.
std::string last_words(const std::string& said) {
  const size_t error = said.rfind("xffl: error (");
  const size_t words = error == std::string::npos ? error : said.find("): ", error);
  std::string text = words == std::string::npos ? said : said.substr(words + 3);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "it said nothing" : log::printable(text);
}

std::string text_from(const std::filesystem::path& path, uintmax_t offset) {
  std::ifstream file(path);
  file.seekg(static_cast<std::streamoff>(offset));
  return {std::istreambuf_iterator<char>(file), {}};
}

// Starts `xffl run` in a session of its own and waits until it holds the run, or has ended.
void detach(const ProjectOptions& options, bool fresh, bool network_allowed) {
  check_file_system(options.runs(), network_allowed);
  std::vector<std::string> argv = {std::filesystem::read_symlink("/proc/self/exe").string(), "run",
                                   "-p", std::filesystem::absolute(options.project).string()};
  if (!options.workdir.empty())
    argv.insert(argv.end(), {"-w", std::filesystem::absolute(options.workdir).string()});
  if (!options.run.empty()) argv.insert(argv.end(), {"--run", options.existing_run().run().str()});
  if (fresh) argv.push_back("--new");
  if (fresh) warn_of_another(options);
  if (network_allowed) argv.push_back("--allow-network-fs");
  make_dirs(options.runs());
  // Each run has its own, and no later coordinator takes away what an earlier one said.
  const std::filesystem::path output =
      options.runs() / ("detached-" + name_of_run(options, fresh).str() + ".out");
  std::error_code none;
  const auto said_before = std::filesystem::file_size(output, none);
  const pid_t pid = start_detached({.argv = argv}, output);
  int status = 0;
  for (int i = 0; i < 300; ++i) {
    if (::waitpid(pid, &status, WNOHANG) == pid) break;
    const auto name = options.run.empty() ? history::latest_run(options.runs())
                                          : std::optional(RunName(options.run));
    if (name && holds(history::RunFolder(options.runs(), *name), pid)) {
      std::printf(
          "run %s goes on in process %d\nfollow it with `xffl attach`, see `xffl status`; "
          "`kill %d` detaches it from its facilities\n",
          name->str().c_str(), pid, pid);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = -1;
  }
  const std::string said = text_from(output, none ? 0 : said_before);
  if (status == 0) {  // it was complete already, or is by now
    std::fputs(said.c_str(), stdout);
    return;
  }
  throw Error(kind_of_exit(status), "the coordinator has not started: " + last_words(said));
}

ErrorKind kind_of_word(std::string_view word) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kFailed); ++kind)
    if (to_string(static_cast<ErrorKind>(kind)) == word) return static_cast<ErrorKind>(kind);
  return ErrorKind::kFailed;
}

// Throws what the coordinator of a run that nobody coordinates any more has ended with.
void check_end(const status::RunStatus& status) {
  const std::string run = "run " + status.folder.filename().string();
  if (status.run_state.completed) return;
  if (status.run_state.cancelled) throw Error(ErrorKind::kFailed, run + " was cancelled");
  const auto& stopped = status.run_state.stopped;
  if (!stopped)
    throw Error(ErrorKind::kFailed, "the coordinator of " + run +
                                        " has gone without a word (killed, or the machine went "
                                        "down): `xffl run` continues");
  throw Error(kind_of_word(stopped->kind), run + " stopped at " + stopped->time_utc + ": " +
                                               log::printable(stopped->reason, 4000));
}

// Follows the coordinator of a run until it ends; leaving it harms nothing.
void attach(const ProjectOptions& options) {
  const history::RunFolder folder = options.existing_run();
  const config::Experiment experiment = experiment_of(options, folder);
  StopOnSignal signals("leaving; the coordinator goes on");
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

void add_run_command(CLI::App& app) {
  struct State {
    ProjectOptions options;
    bool fresh = false, detached = false, network = false;
  };
  auto state = std::make_shared<State>();
  CLI::App* command =
      app.add_subcommand("run", "run the federation, or continue the newest run where it stopped");
  command->add_option("-p,--project", state->options.project,
                      "the folder with xffl.yaml (default: this folder)");
  command->add_option("-w,--workdir", state->options.workdir,
                      "where runs/ goes (default: the project's folder)");
  auto* name = command->add_option("--run", state->options.run,
                                   "the run to continue, such as 0003 (default: the newest)");
  command->add_flag("--new", state->fresh, "start another run")->excludes(name);
  command->add_flag("--detach", state->detached, "go on without this terminal");
  command->add_flag("--allow-network-fs", state->network,
                    "also with runs/ on NFS, Lustre, ...: only ever from one machine");
  command->callback([state] {
    (state->detached ? detach : run_here)(state->options, state->fresh, state->network);
  });
  CLI::App* follow = app.add_subcommand("attach", "follow a run that another process coordinates");
  add_project_options(follow, state->options);
  follow->callback([state] { attach(state->options); });
}

}  // namespace xffl
