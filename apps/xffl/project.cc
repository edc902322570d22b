#include "project.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/config/load.h"

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
  command->add_option("-p,--project", options.project,
                      "the folder with xffl.yaml (default: this folder)");
  command->add_option("-w,--workdir", options.workdir,
                      "the folder of runs/ (default: the project's folder)");
  return command->add_option("--run", options.run, "the run, such as 0003 (default: the newest)");
}

config::Experiment experiment_of(const ProjectOptions& options, const history::RunFolder& folder) {
  return config::parse_experiment(read_file(folder.config(), 4 << 20), folder.config(),
                                  std::filesystem::absolute(options.project));
}

struct StopOnSignal::State {
  std::stop_source stop;
  UniqueFd signals;
  sigset_t before{};
  std::jthread thread;
};

void require_model(const config::Experiment& experiment) {
  for (const std::string& missing : config::find_missing(experiment))
    if (missing.starts_with("model:") || missing.starts_with("adapter:"))
      throw Error(ErrorKind::kNotFound,
                  missing + "; correct it in xffl.yaml, or put a Hugging Face folder there");
}

StopOnSignal::StopOnSignal(std::string message, std::optional<std::chrono::seconds> patience)
    : state_(std::make_unique<State>()) {
  // Blocks the signals before other threads start, so that the signals reach only the descriptor.
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, &state_->before);
  state_->signals = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!state_->signals) throw system_error("watch signals", errno);
  state_->thread = std::jthread(
      [state = state_.get(), message = std::move(message), patience](const std::stop_token& end) {
        auto exit_at = std::chrono::steady_clock::time_point::max();
        while (!end.stop_requested()) {
          if (std::chrono::steady_clock::now() > exit_at) {
            std::fprintf(
                stderr, "xffl: stopped before a long operation has ended; run again to continue\n");
            ::_exit(exit_code(ErrorKind::kCancelled));
          }
          signalfd_siginfo info;
          if (::read(state->signals.get(), &info, sizeof info) != sizeof info) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            continue;
          }
          if (state->stop.stop_requested()) ::_exit(130);
          std::fprintf(stderr, "\nxffl: %s (a second signal exits at once)\n", message.c_str());
          if (patience) exit_at = std::chrono::steady_clock::now() + *patience;
          state->stop.request_stop();
        }
      });
}

StopOnSignal::~StopOnSignal() {
  state_->thread.request_stop();
  state_->thread.join();
  ::pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
}

std::stop_token StopOnSignal::token() const { return state_->stop.get_token(); }

}  // namespace xffl
