#include "setup.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/version.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "failure.h"
#include "xffl/base/error.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/device.h"

namespace xffl::train_app {

Rank set_up_rank(const CommonOptions& options) {
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

void set_up_process() {
  train::keep_freed_memory();
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted != nullptr && std::string_view(wanted) == "1") return;
  c10::SetStackTraceFetcher([] { return std::string(); });
}

std::string version_line() { return "xffl-train " XFFL_VERSION " (torch " TORCH_VERSION ")"; }

checkpoint::Dtype parse_dtype(const std::string& text) {
  const std::optional<job::FloatType> type = parse_enum<job::FloatType>(text);
  if (!type)
    throw Error(ErrorKind::kUsage, "--dtype is '" + text + "', expected fp32, bf16 or fp16");
  if (*type == job::FloatType::kBfloat16) return checkpoint::Dtype::kBF16;
  return *type == job::FloatType::kFloat16 ? checkpoint::Dtype::kF16 : checkpoint::Dtype::kF32;
}

}  // namespace xffl::train_app
