#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "stop_on_signal.h"
#include "terminal.h"
#include "watch.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/facility/services.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/run/federation.h"
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

// Formats a JSON line of coordinator.log as text.
std::string readable(const std::string& json_line) try {
  const Json json = parse_json(json_line, "log");
  std::string text;
  for (const auto& [key, value] : json.items()) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    text +=
        (key == "time" || key == "level" || key == "event") ? shown + " " : key + "=" + shown + " ";
  }
  return log::printable(text);
} catch (const Error&) {
  return log::printable(json_line);
}

constexpr size_t kMaxLine = 1 << 20;  // print_lines() breaks a longer line

// Hides the lines of a private key; one line alone does not look like a key.
class KeyLines {
 public:
  bool hides(const std::string& line) {
    const bool begins = line.find("-----BEGIN ") != std::string::npos &&
                        line.find("PRIVATE KEY-----") != std::string::npos;
    const bool hidden = inside_ && !begins;
    inside_ = (inside_ || begins) && line.find("-----END ") == std::string::npos;
    return hidden;
  }

 private:
  bool inside_ = false;
};

// Prints the lines of `read_more`, which appends the next block and returns false at the end; with
// `follow`, polls for more. Returns whether there was any output.
bool print_lines(const std::function<bool(std::string&)>& read_more, bool follow,
                 std::chrono::milliseconds pause, bool is_json) {
  StopOnSignal signals("stopped following");
  std::string pending;
  KeyLines key;
  bool more = false, any = false;
  do {
    more = read_more(pending);
    any = any || more;
    if (pending.size() > kMaxLine && pending.find('\n') == std::string::npos) pending += '\n';
    for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      const std::string line = pending.substr(0, end);
      if (key.hides(line)) continue;
      std::printf("%s\n", is_json ? readable(line).c_str() : log::printable(line, 4000).c_str());
    }
    std::fflush(stdout);
    if (follow && !more) SystemClock().sleep(pause, signals.token());
  } while ((follow || more) && !signals.token().stop_requested());
  if (!pending.empty() && !key.hides(pending)) std::printf("%s\n", log::printable(pending).c_str());
  return any;
}

void coordinator_logs(const history::RunFolder& folder, bool follow) {
  std::ifstream file(folder.log());
  if (!file) throw Error(ErrorKind::kNotFound, folder.log().string() + " does not exist");
  print_lines(
      [&](std::string& pending) {
        file.clear();
        char block[1 << 14];
        file.read(block, sizeof block);
        pending.append(block, static_cast<size_t>(file.gcount()));
        return file.gcount() > 0;
      },
      follow, std::chrono::milliseconds(300), true);
}

// The path of the job's output at the facility, for the newest attempt with a job.
RemotePath job_output(const config::Experiment& experiment, const history::RunState& run_state,
                      const FacilityName& name) {
  const config::Facility& facility = experiment.facility(name);
  for (auto it = run_state.rounds.rbegin(); it != run_state.rounds.rend(); ++it) {
    const auto state = it->second.facilities.find(name);
    if (state == it->second.facilities.end()) continue;
    const std::vector<history::Attempt>& attempts = state->second.attempts;
    const auto attempt = std::find_if(attempts.rbegin(), attempts.rend(),
                                      [](const history::Attempt& a) { return !a.job_id.empty(); });
    if (attempt == attempts.rend()) continue;
    const RemotePath folder = plan::facility_folder(experiment, *run_state.identity, facility);
    return plan::attempt_folder(folder, it->first, attempt->number) / submit::kJobOutput;
  }
  throw Error(ErrorKind::kNotFound, "facility " + name.str() + " has no job in this run yet");
}

void facility_logs(const ProjectOptions& options, const std::string& facility, bool follow) {
  const history::RunFolder folder = options.existing_run();
  const config::Experiment experiment = experiment_of(options, folder);
  const history::RunState run_state = history::replay(history::read_events(folder.journal()));
  const FacilityName name(facility);
  const RemotePath path = job_output(experiment, run_state, name);
  SystemClock clock;
  const facility::Services services =
      facility::make_services(clock, experiment.project_folder, login_prompt());
  const auto session = services.connect(experiment.facility(name));
  uint64_t offset = 0;
  // The command polls a login node less often than a local disk.
  const bool remote = experiment.facility(name).access == config::AccessKind::kSsh;
  const bool any = print_lines(
      [&](std::string& pending) {
        if (!session->stat(path)) return false;
        std::vector<std::byte> block(1 << 16);
        const size_t n = session->read(path, offset, block);
        offset += n;
        pending.append(reinterpret_cast<const char*>(block.data()), n);
        return n > 0;
      },
      follow, std::chrono::milliseconds(remote ? 3000 : 300), false);
  if (!any)
    std::fprintf(stderr, "no output yet in %s: `xffl status` shows the state of the job\n",
                 path.str().c_str());
}

}  // namespace

void add_status_commands(CLI::App& app, const Colours& colours) {
  struct State {
    ProjectOptions options;
    bool json = false, follow = false;
    int watch_seconds = 0;  // 0: not given
    WatchOptions live;
    const Colours* colours = nullptr;
    std::string facility;
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

  CLI::App* logs_command = app.add_subcommand(
      "logs", "print the coordinator's log, or the output of a facility's newest job");
  add_project_options(logs_command, state->options);
  logs_command->add_option("facility", state->facility, "a facility's name");
  logs_command->add_flag("-f,--follow", state->follow, "follow: print new lines as they arrive");
  logs_command->callback([state] {
    if (state->facility.empty())
      coordinator_logs(state->options.existing_run(), state->follow);
    else
      facility_logs(state->options, state->facility, state->follow);
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
