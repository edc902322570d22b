#include "setup.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/train/device.h"
#include "xffl/train/run_job.h"

namespace xffl::train_app {

Rank set_up_rank(const CommonOptions& options) {
  Rank rank;
  const comm::Environment environment = comm::process_environment();
  rank.rendezvous = comm::read_rendezvous(environment);
  at::set_num_threads(train::choose_threads(options.threads, rank.rendezvous, environment));
  rank.device = train::choose_device(options.device, rank.rendezvous.local_rank);
  rank.group = comm::make_group(rank.rendezvous, rank.device, train::device_name(rank.device));
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

void end_process(const std::exception& error) {
  const Error ours = train::translated(error);
  std::fflush(stdout);
  std::fprintf(stderr, "xffl-train: %s error: %s\n", std::string(to_string(ours.kind())).c_str(),
               log::printable(ours.what(), 4000).c_str());
  std::fflush(stderr);
  _exit(exit_code(ours.kind()));
}

void set_up_process() {
  train::keep_freed_memory();
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted != nullptr && std::string_view(wanted) == "1") return;
  c10::SetStackTraceFetcher([] { return std::string(); });
}

std::string version_line() { return "xffl-train " XFFL_VERSION " (torch " TORCH_VERSION ")"; }

job::FloatType parse_float_type(const std::string& option, const std::string& text) {
  if (const std::optional<job::FloatType> type = parse_enum<job::FloatType>(text)) return *type;
  throw Error(ErrorKind::kUsage, option + " is '" + text + "', expected fp32, bf16 or fp16");
}

train::LoadOptions load_options(const Rank& rank, job::FloatType precision,
                                const std::string& adapter) {
  train::LoadOptions load;
  load.device = rank.device;
  load.precision = precision;
  load.adapter = adapter;
  if (!adapter.empty()) load.lora = checkpoint::read_lora_config(adapter);
  return load;
}

}  // namespace xffl::train_app
