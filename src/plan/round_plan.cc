#include "xffl/plan/round_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "xffl/base/json.h"
#include "xffl/base/sha256.h"
#include "xffl/job/optimizer_names.h"

namespace xffl::plan {
namespace {

std::string round_name(int round) {
  char text[16];
  std::snprintf(text, sizeof text, "r%04d", round);
  return text;
}

// Nobody without the run's secret can guess another attempt's nonce, so no old report passes for a
// new one.
std::string nonce(const RunIdentity& identity, int round, const FacilityName& facility,
                  int attempt) {
  return sha256_hex(identity.secret + "/" + identity.run.str() + "/" + std::to_string(round) + "/" +
                    facility.str() + "/" + std::to_string(attempt))
      .substr(0, 32);
}

// The state that the optimizer begins with: that of the training accepted in the round before, and
// of no other attempt.
std::string optimizer_given(const RunIdentity& identity, const FacilityPlan& facility,
                            job::JobKey key) {
  if (facility.accepted_before == 0) return std::string(job::kNoOptimizerState);
  key.round -= 1;
  key.attempt = facility.accepted_before;
  key.nonce = nonce(identity, key.round, facility.facility, key.attempt);
  return job::optimizer_state_name(key);
}

FacilityPlan plan_facility(const config::Experiment& experiment, const RunIdentity& identity,
                           const config::Facility& facility, int round, const Done& done) {
  FacilityPlan plan;
  plan.facility = facility.name;
  plan.folder = facility.workdir / experiment.project.str() /
                (identity.run.str() + "-" + identity.secret.substr(0, 8)) / facility.name.str();
  plan.model_folder = plan.folder / "models" / done.model_sha256.substr(0, 16);
  if (!done.adapted_sha256.empty())
    plan.adapted_folder = plan.folder / "models" / done.adapted_sha256.substr(0, 16);
  plan.round_folder = plan.folder / round_name(round);
  return plan;
}

// Measures the model as it is given, with all else as in a training.
void train_nothing(job::JobSpec& spec) {
  spec.train_paths.clear();
  spec.optimizer_path.clear();
  spec.on_stop = job::OnStop::kUpdate;
  spec.training.steps = 0;
  spec.training.keep_optimizer = false;
}

}  // namespace

std::optional<RoundPlan> next_round(const config::Experiment& experiment,
                                    const RunIdentity& identity, const Done& done) {
  const bool evaluates = done.rounds_published >= experiment.rounds;
  if (evaluates && (done.run_completed || !experiment.policy.evaluate_last)) return std::nullopt;
  RoundPlan plan;
  plan.evaluates = evaluates;
  plan.round = done.rounds_published + 1;
  plan.base_sha256 = done.model_sha256;
  plan.adapted_sha256 = done.adapted_sha256;
  for (const config::Facility& facility : experiment.facilities) {
    if (evaluates && facility.validation.empty()) continue;
    plan.facilities.push_back(plan_facility(experiment, identity, facility, plan.round, done));
    const auto before = done.accepted.find(facility.name);
    if (before != done.accepted.end()) plan.facilities.back().accepted_before = before->second;
  }
  if (plan.facilities.empty()) return std::nullopt;
  const int all = evaluates ? 0 : static_cast<int>(plan.facilities.size());
  const config::RoundPolicy& policy = experiment.policy;
  if (policy.on_missing != config::OnMissing::kSkip)
    plan.quorum = all;
  else
    plan.quorum = policy.quorum > 0 ? std::min(policy.quorum, all) : 1;
  return plan;
}

RemotePath attempt_folder(const FacilityPlan& plan, int attempt) {
  return plan.round_folder / ("a" + std::to_string(attempt));
}

RemotePath attempt_folder(const FacilityPlan& plan, int round, int attempt) {
  return plan.folder / round_name(round) / ("a" + std::to_string(attempt));
}

job::JobSpec job_spec(const config::Experiment& experiment, const RunIdentity& identity,
                      const RoundPlan& plan, const FacilityPlan& facility, int attempt) {
  const config::Facility& settings = experiment.facility(facility.facility);
  job::JobSpec spec;
  spec.key = {experiment.project.str(),
              identity.run.str(),
              plan.round,
              facility.facility.str(),
              attempt,
              nonce(identity, plan.round, facility.facility, attempt)};
  spec.base_model_path = facility.model_folder.str();
  spec.base_model_sha256 = plan.base_sha256;
  if (!plan.adapted_sha256.empty()) {
    spec.adapter_path = std::exchange(spec.base_model_path, facility.adapted_folder.str());
    spec.adapter_sha256 = std::exchange(spec.base_model_sha256, plan.adapted_sha256);
  }
  spec.train_paths = settings.train_data;
  spec.validation = settings.validation;
  const RemotePath folder = attempt_folder(facility, attempt);
  spec.update_path = (folder / "out/update").str();
  spec.report_path = (folder / "out/report.json").str();
  spec.metrics_path = (folder / "out/metrics.jsonl").str();
  spec.state_path = (facility.round_folder / "state").str();
  spec.on_stop = experiment.policy.on_walltime == config::OnWalltime::kResume
                     ? job::OnStop::kCheckpoint
                     : job::OnStop::kUpdate;
  spec.update_kind = experiment.aggregation.update;
  spec.update_dtype = experiment.aggregation.update_dtype;
  spec.training = settings.training;
  if (spec.training.keep_optimizer)
    spec.optimizer_path =
        (facility.folder / "optimizer" / optimizer_given(identity, facility, spec.key)).str();
  spec.training.first_step = (plan.round - 1) * settings.training.steps;
  if (plan.evaluates) train_nothing(spec);
  return spec;
}

std::string format_plan(const RoundPlan& plan) {
  Json json;
  json["round"] = plan.round;
  json["base_sha256"] = plan.base_sha256;
  if (!plan.adapted_sha256.empty()) json["adapted_sha256"] = plan.adapted_sha256;
  json["quorum"] = plan.quorum;
  if (plan.evaluates) json["evaluates"] = true;
  json["facilities"] = Json::array();
  for (const FacilityPlan& facility : plan.facilities)
    json["facilities"].push_back({{"facility", facility.facility.str()},
                                  {"model_folder", facility.model_folder.str()},
                                  {"round_folder", facility.round_folder.str()}});
  return json.dump(2) + "\n";
}

}  // namespace xffl::plan
