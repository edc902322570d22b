#include "stop_on_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/file.h"

namespace xffl {
namespace {

// Prints `text` unless stderr is full: the reader of a terminal or a pipe may stand still, and a
// stop does not wait for the reader. The stream `stderr` is not used: a thread that waits for the
// reader holds its lock.
void print_if_possible(const std::string& text) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// A callback of the stop may wait for a thread that itself waits for the reader of stderr. This
// thread goes on: it ends the process after the patience, or at the second signal.
void request_stop(const std::stop_source& stop) {
  try {
    std::thread([stop]() mutable { stop.request_stop(); }).detach();
  } catch (const std::system_error&) {  // this machine's limit of processes is reached
    std::stop_source(stop).request_stop();
  }
}

// True under nohup and `trap '' HUP`.
bool ignores_hangups() {
  struct sigaction action {};
  return ::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

struct StopOnSignal::State {
  std::stop_source stop;
  UniqueFd signals;
  sigset_t before{};
  std::atomic<bool> ends_process = false;  // after the patience
  std::jthread thread;
};

StopOnSignal::StopOnSignal(std::string message, std::optional<std::chrono::seconds> patience)
    : state_(std::make_shared<State>()) {
  // Blocks the signals before other threads start, so that the signals reach only the descriptor.
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  if (ignores_hangups()) sigdelset(&set, SIGHUP);  // Linux queues a blocked signal all the same
  ::pthread_sigmask(SIG_BLOCK, &set, &state_->before);
  state_->signals = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!state_->signals) throw system_error("watch signals", errno);
  state_->thread = std::jthread(
      [state = state_, message = std::move(message), patience](const std::stop_token& end) {
        auto exit_at = std::chrono::steady_clock::time_point::max();
        bool stopping = false;
        while (!end.stop_requested()) {
          if (std::chrono::steady_clock::now() > exit_at) {
            print_if_possible(
                "xffl: stopped before a long operation has ended; run again to continue\n");
            ::_exit(exit_code(ErrorKind::kCancelled));
          }
          signalfd_siginfo info;
          if (::read(state->signals.get(), &info, sizeof info) != sizeof info) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            continue;
          }
          if (std::exchange(stopping, true)) ::_exit(130);
          if (patience) {
            exit_at = std::chrono::steady_clock::now() + *patience;
            state->ends_process = true;
          }
          print_if_possible("\nxffl: " + message + " (a second signal exits at once)\n");
          request_stop(state->stop);
        }
      });
}

StopOnSignal::~StopOnSignal() {
  if (state_->ends_process) {  // the end of the command may wait for the reader of its last message
    state_->thread.detach();
    ::pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
    return;
  }
  state_->thread.request_stop();
  state_->thread.join();
  // A pending signal would end the process when its delivery is allowed again.
  signalfd_siginfo info;
  while (::read(state_->signals.get(), &info, sizeof info) == sizeof info) {
  }
  ::pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
}

std::stop_token StopOnSignal::token() const { return state_->stop.get_token(); }

}  // namespace xffl
