#include <algorithm>

#include "disk_space.h"
#include "doctor.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/config/load.h"
#include "xffl/history/store.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using Severity = CheckResult::Severity;

// Finds before submission the faults that a job would report only after its time in the queue.
std::vector<CheckResult> check_model(const config::Experiment& experiment) {
  std::vector<CheckResult> results;
  for (const std::string& missing : config::find_missing(experiment))
    results.push_back({Severity::kError, "file", missing, "put it there, or correct xffl.yaml"});
  const bool exists = std::none_of(results.begin(), results.end(), [](const CheckResult& result) {
    return result.message.starts_with("model:") || result.message.starts_with("adapter:");
  });
  if (!exists) return results;
  const auto builtin = [](const config::Facility& facility) {
    return facility.trainer_command.empty();
  };
  try {
    if (std::any_of(experiment.facilities.begin(), experiment.facilities.end(), builtin))
      checkpoint::read_llama_config(experiment.model);
    else
      parse_json(read_file(experiment.model / "config.json", 1 << 20),
                 (experiment.model / "config.json").string());
    facility::model_bytes(experiment, experiment.model);
    results.push_back({Severity::kOk, "model", experiment.model.string(), ""});
  } catch (const Error& error) {
    results.push_back({Severity::kError, "model", error.what(),
                       "copy the model again, or correct 'model' in xffl.yaml"});
  }
  return results;
}

fs::path nearest_existing(fs::path folder) {
  std::error_code unknown;
  while (!fs::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

}  // namespace

std::vector<CheckResult> check_machine(const config::Experiment& experiment, const fs::path& runs,
                                       const facility::Services& services) {
  std::vector<CheckResult> results = check_model(experiment);
  const std::string file_system = history::network_file_system(runs);
  const fs::path folder = nearest_existing(runs);
  if (!file_system.empty())
    results.push_back(
        {Severity::kError, "runs folder", folder.string() + " is on " + file_system,
         "put runs/ on a local disk (`--workdir` of all commands): a journal is not safe there"});
  else
    results.push_back({Severity::kOk, "runs folder", folder.string(), ""});
  std::error_code none;
  const fs::space_info info = fs::space(folder, none);
  const auto bytes = bytes_of_model(experiment);
  if (bytes && !none)
    results.push_back(check_free_space(folder.string(), info.available,
                                       bytes->here(experiment.facilities.size())));
  if (fs::exists(services.programs.trainer))
    results.push_back({Severity::kOk, "trainer", services.programs.trainer.string(), ""});
  return results;
}

}  // namespace xffl
