#include <unistd.h>

#include "xffl/config/load.h"

namespace xffl::config {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_program(const fs::path& path) { return is_file(path) && access(path.c_str(), X_OK) == 0; }

void check_model(const fs::path& model, std::vector<std::string>& missing) {
  std::error_code error;
  if (!fs::is_directory(model, error)) {
    missing.push_back("model: there is no folder " + model.string());
    return;
  }
  if (!is_file(model / "config.json"))
    missing.push_back("model: " + model.string() + " holds no config.json");
  bool weights = false;
  for (const auto& entry : fs::directory_iterator(model, error))
    weights = weights || entry.path().extension() == ".safetensors";
  if (!weights) missing.push_back("model: " + model.string() + " holds no *.safetensors");
}

void check_adapter(const fs::path& adapter, std::vector<std::string>& missing) {
  if (adapter.empty()) return;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    if (!is_file(adapter / name))
      missing.push_back("adapter: " + adapter.string() + " holds no " + name);
}

void check_facility(const Facility& facility, std::vector<std::string>& missing) {
  const std::string where = "facilities." + facility.name.str();
  const auto expect_file = [&](const std::string& key, const std::string& path) {
    if (!is_file(path)) missing.push_back(where + "." + key + ": there is no file " + path);
  };
  if (!facility.template_file.empty()) expect_file("template", facility.template_file.string());
  for (const fs::path& key : facility.ssh.keys) expect_file("ssh.keys", key.string());
  if (facility.access != AccessKind::kLocal) return;
  if (!facility.prepared.empty() && !is_file(facility.train_data.front()))
    missing.push_back(where + ".data.text: the text is not tokenized yet: xffl prepare " +
                      facility.name.str());
  else
    for (const std::string& shard : facility.train_data) expect_file("data.train", shard);
  for (const job::ValidationSet& set : facility.validation)
    if (facility.prepared.empty() ||
        set.path != (facility.prepared / tokens::kPreparedValidation).str())
      expect_file("data.validation." + set.name, set.path);
  if (!facility.trainer_program.empty() && !is_program(facility.trainer_program))
    missing.push_back(where + ".trainer.program: " + facility.trainer_program +
                      " is not a program that can be run");
  if (!facility.trainer_command.empty() && facility.trainer_command.front().starts_with('/') &&
      !is_program(facility.trainer_command.front()))
    missing.push_back(where + ".trainer.command: " + facility.trainer_command.front() +
                      " is not a program that can be run");
}

}  // namespace

std::vector<std::string> find_missing(const Experiment& experiment) {
  std::vector<std::string> missing;
  check_model(experiment.model, missing);
  check_adapter(experiment.adapter, missing);
  for (const Facility& facility : experiment.facilities) check_facility(facility, missing);
  return missing;
}

}  // namespace xffl::config
