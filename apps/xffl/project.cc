#include "project.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {

std::filesystem::path ProjectOptions::runs() const {
  return std::filesystem::absolute(workdir.empty() ? project : workdir) / "runs";
}

round::RunFolder ProjectOptions::existing_run() const {
  if (!run.empty()) return round::RunFolder(runs(), RunName(run));
  const auto latest = round::latest_run(runs());
  if (!latest)
    throw Error(ErrorKind::kNotFound, "there is no run in " + runs().string() +
                                          ": start one with `xffl run -p " + project.string() +
                                          "`");
  return round::RunFolder(runs(), *latest);
}

struct StopOnSignal::State {
  std::stop_source stop;
  UniqueFd signals;
  sigset_t before{};
  std::jthread thread;
};

StopOnSignal::StopOnSignal() : state_(std::make_unique<State>()) {
  // Blocked here, before other threads begin, the signals reach only the descriptor.
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, &state_->before);
  state_->signals = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!state_->signals) throw system_error("watch signals", errno);
  state_->thread = std::jthread([state = state_.get()](std::stop_token end) {
    while (!end.stop_requested()) {
      signalfd_siginfo info;
      if (::read(state->signals.get(), &info, sizeof info) != sizeof info) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      if (state->stop.stop_requested()) ::_exit(130);
      std::fputs("\nxffl: detaching; jobs at the facilities go on (once more to leave at once)\n",
                 stderr);
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
