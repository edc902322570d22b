#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "setup.h"
#include "xffl/base/error.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train_app {
namespace {

// Global, because a signal handler has no other access.
std::atomic<train::StopRequest> stop_request{train::StopRequest::kNone};
std::atomic<bool> is_set_up{false};
static_assert(std::atomic<train::StopRequest>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free);

// The rendezvous with the other ranks may take minutes, and there is nothing to save yet.
void end_before_set_up() {
  constexpr std::string_view kText = "xffl-train: stopped by a signal before the job began\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(exit_code(ErrorKind::kCancelled));
}

// Slurm sends SIGUSR1 and SIGTERM before the walltime ends or when a user cancels the job. srun may
// send both, so repetitions have no effect. A user at a terminal sends SIGINT.
extern "C" void on_signal(int signal) {
  if (!is_set_up) end_before_set_up();
  if (signal == SIGINT) {
    stop_request = train::StopRequest::kAbort;
    std::signal(signal, SIG_DFL);  // a second SIGINT ends the process at once
  } else if (stop_request == train::StopRequest::kNone) {
    stop_request = train::StopRequest::kFinish;
  }
}

void install_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

}  // namespace

void train_command(const CommonOptions& common, const std::string& job_path, bool benchmark) {
  install_handlers();
  const job::JobSpec spec = job::read_job_spec(job_path);
  const Rank rank = set_up_rank(common);
  is_set_up = true;
  const train::JobContext context{*rank.group,
                                  rank.device,
                                  rank.rendezvous.local_world_size,
                                  version_line(),
                                  [] { return stop_request.load(); },
                                  benchmark};
  // The job outlives an error in run_as_rank(): see end_process().
  train::Job job(spec, context);
  run_as_rank(rank, [&] { train::with_translated_context(spec.key.name(), [&] { job.run(); }); });
}

}  // namespace xffl::train_app
