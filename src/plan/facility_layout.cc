#include "xffl/plan/facility_layout.h"

#include <cstdio>

namespace xffl::plan {

RemotePath facility_folder(const config::Experiment& experiment, const RunIdentity& identity,
                           const config::Facility& facility) {
  return facility.workdir / experiment.project.str() / identity.unique_name() / facility.name.str();
}

RemotePath models_folder(const RemotePath& facility_folder) { return facility_folder / "models"; }

RemotePath model_folder(const RemotePath& facility_folder, const std::string& sha256) {
  return models_folder(facility_folder) / model_folder_name(sha256);
}

std::string model_folder_name(const std::string& sha256) { return sha256.substr(0, 16); }

bool is_model_folder_name(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

RemotePath optimizer_path(const RemotePath& facility_folder, const std::string& state_name) {
  return facility_folder / "optimizer" / state_name;
}

RemotePath round_folder(const RemotePath& facility_folder, int round) {
  char name[16];
  std::snprintf(name, sizeof name, "r%04d", round);
  return facility_folder / name;
}

std::optional<int> parse_round_name(const std::string& name) {
  if (name.size() < 5 || name.size() > 9 || name.front() != 'r' ||
      name.find_first_not_of("0123456789", 1) != std::string::npos)
    return std::nullopt;
  return std::stoi(name.substr(1));
}

RemotePath attempt_folder(const RemotePath& facility_folder, int round, int attempt) {
  return round_folder(facility_folder, round) / ("a" + std::to_string(attempt));
}

RemotePath attempt_folder(const FacilityPlan& plan, int round, int attempt) {
  return attempt_folder(plan.folder, round, attempt);
}

RemotePath attempt_folder(const FacilityPlan& plan, int attempt) {
  return plan.round_folder / ("a" + std::to_string(attempt));
}

}  // namespace xffl::plan
