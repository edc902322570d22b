#include "setup.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/version.h>

#include <cstdlib>
#include <string_view>

#include "failure.h"
#include "xffl/train/device.h"

namespace xffl::train_app {

Rank set_up_rank(const CommonOptions& options) {
  train::keep_freed_memory();
  Rank rank;
  const comm::Environment environment = comm::process_environment();
  rank.rendezvous = comm::read_rendezvous(environment);
  at::set_num_threads(train::choose_threads(options.threads, rank.rendezvous, environment));
  rank.device = train::choose_device(options.device, rank.rendezvous.local_rank);
  rank.group = comm::make_group(rank.rendezvous, rank.device);
  return rank;
}

void run_as_rank(const Rank& rank, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (rank.group->size() > 1) end_process(error);
    throw;
  }
}

void leave_out_stack_traces() {
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted != nullptr && std::string_view(wanted) == "1") return;
  c10::SetStackTraceFetcher([] { return std::string(); });
}

std::string version_line() { return "xffl-train " XFFL_VERSION " (torch " TORCH_VERSION ")"; }

}  // namespace xffl::train_app
