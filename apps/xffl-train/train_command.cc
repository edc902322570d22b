#include <atomic>
#include <csignal>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/run_job.h"

namespace xffl::train_app {
namespace {

// A signal handler can reach nothing else.
std::atomic<train::StopRequest> stop_request{train::StopRequest::kNone};
static_assert(std::atomic<train::StopRequest>::is_always_lock_free);

extern "C" void on_signal(int signal) {
  if (signal != SIGUSR1) {
    stop_request = train::StopRequest::kAbort;
    // A second signal ends the process at once.
    std::signal(signal, SIG_DFL);
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

void train_command(const CommonOptions& common, const std::string& job_path) {
  install_handlers();
  const job::JobSpec spec = job::read_job_spec(job_path);
  const Rank rank = set_up_rank(common);
  const train::JobContext context{*rank.group, rank.device, version_line(),
                                  [] { return stop_request.load(); }};
  try {
    train::run_job(spec, context);
  } catch (Error& error) {
    error.add_context(spec.key.job_name());
    throw;
  }
}

}  // namespace xffl::train_app
