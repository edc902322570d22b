#include "signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>
#include <thread>

#include "xffl/base/error.h"

namespace xffl::train_app {
namespace {

// Global, because the thread that takes the signals ends with the process.
std::atomic<train::StopRequest> stop_request{train::StopRequest::kNone};
std::atomic<bool> is_set_up{false};

// The rendezvous with the other ranks may take minutes, and there is nothing to save yet.
void end_before_set_up() {
  constexpr std::string_view kText = "xffl-train: stopped by a signal before the job began\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(exit_code(ErrorKind::kCancelled));
}

// Slurm sends SIGUSR1 and SIGTERM before the walltime ends or when a user cancels the job. srun may
// send both, so repetitions have no effect. A user at a terminal sends SIGINT.
void on_signal(int signal) {
  if (!is_set_up) end_before_set_up();
  if (signal == SIGINT)
    stop_request = train::StopRequest::kAbort;
  else if (stop_request == train::StopRequest::kNone)
    stop_request = train::StopRequest::kFinish;
}

}  // namespace

// Takes the signals in a thread of their own, and blocks them in all others. A handler must never
// interrupt a computation: below LibTorch's oneDNN products the frame of a handler on the
// thread's stack damages the heap, perhaps because kernels compiled at run time use the stack
// pointer otherwise. (LibTorch 2.11, AVX-512: with 1400 signals a second 10 of 10 trainings ended
// with a damaged heap, none with the handler on another stack.)
void take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(signal, SIG_DFL);  // an ignored signal would be lost, although it is blocked
    sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals]() mutable {
    for (int signal = 0;;) {
      if (sigwait(&signals, &signal) != 0) continue;
      on_signal(signal);
      if (signal != SIGINT) continue;
      // A second SIGINT ends the process at once.
      sigdelset(&signals, SIGINT);
      sigset_t unblocked;
      sigemptyset(&unblocked);
      sigaddset(&unblocked, SIGINT);
      pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
    }
  }).detach();  // ends with the process
}

void rank_is_set_up() { is_set_up = true; }

train::StopRequest requested_stop() { return stop_request.load(); }

}  // namespace xffl::train_app
