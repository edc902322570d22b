#include "xffl/plan/round_plan.h"

#include <algorithm>
#include <utility>

#include "xffl/base/json.h"
#include "xffl/base/sha256.h"
#include "xffl/plan/attempt_nonce.h"
#include "xffl/plan/facility_layout.h"

namespace xffl::plan {
namespace {

// The name of the optimizer state that the accepted attempt of the previous round has kept.
std::string initial_optimizer_name(const RunIdentity& identity, const FacilityPlan& facility,
                                   job::JobKey key) {
  if (facility.accepted_before == 0) return std::string(job::kNoOptimizerState);
  key.round -= 1;
  key.attempt = facility.accepted_before;
  key.nonce = attempt_nonce(identity, key.round, facility.facility, key.attempt);
  return key.optimizer_state_name();
}

FacilityPlan plan_facility(const config::Experiment& experiment, const RunIdentity& identity,
                           const config::Facility& facility, int round, const Done& done) {
  FacilityPlan plan;
  plan.facility = facility.name;
  plan.folder = facility_folder(experiment, identity, facility);
  plan.model_folder = model_folder(plan.folder, done.model_sha256);
  if (!done.adapted_sha256.empty())
    plan.adapted_folder = model_folder(plan.folder, done.adapted_sha256);
  plan.round_folder = round_folder(plan.folder, round);
  return plan;
}

// Turns a training into an evaluation of its input model.
void evaluate_only(job::JobSpec& spec) {
  spec.train_paths.clear();
  spec.optimizer_path.clear();
  spec.on_stop = job::OnStop::kUpdate;
  spec.training.steps = 0;
  spec.training.epochs = 0;
  spec.training.total_rounds = 0;
  spec.training.keep_optimizer = false;
}

}  // namespace

std::string attempt_nonce(const RunIdentity& identity, int round, const FacilityName& facility,
                          int attempt) {
  return sha256_hex(identity.secret + "/" + identity.run.str() + "/" + std::to_string(round) + "/" +
                    facility.str() + "/" + std::to_string(attempt))
      .substr(0, 32);
}

std::string RunIdentity::unique_name() const {
  return run.str() + "-" + (tag.empty() ? secret.substr(0, 8) : tag);
}

std::string job_name(const RunIdentity& identity, const job::JobKey& key) {
  job::JobKey unique = key;
  unique.run = identity.unique_name();
  return unique.name();
}

bool is_member(const Done& done, const FacilityName& facility) {
  return done.members.empty() ? !done.left.contains(facility) : done.members.contains(facility);
}

std::optional<RoundPlan> next_round(const config::Experiment& experiment,
                                    const RunIdentity& identity, const Done& done) {
  const bool evaluates = done.stop_rule_met || done.rounds_published >= experiment.rounds;
  if (evaluates && (done.run_completed || !experiment.policy.evaluate_last)) return std::nullopt;
  RoundPlan plan;
  plan.evaluates = evaluates;
  plan.round = done.rounds_published + 1;
  plan.base_sha256 = done.model_sha256;
  plan.adapted_sha256 = done.adapted_sha256;
  for (const config::Facility& facility : experiment.facilities) {
    if (!is_member(done, facility.name) || (evaluates && facility.validation.empty())) continue;
    plan.facilities.push_back(plan_facility(experiment, identity, facility, plan.round, done));
    const auto before = done.accepted.find(facility.name);
    if (before != done.accepted.end()) plan.facilities.back().accepted_before = before->second;
  }
  if (plan.facilities.empty()) return std::nullopt;
  plan.quorum = evaluates ? 0 : quorum(experiment.policy, static_cast<int>(plan.facilities.size()));
  return plan;
}

int quorum(const config::RoundPolicy& policy, int members) {
  if (policy.on_missing != config::OnMissing::kSkip) return members;
  return policy.quorum > 0 ? std::min(policy.quorum, members) : std::min(1, members);
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
              attempt_nonce(identity, plan.round, facility.facility, attempt)};
  spec.base_model_path = facility.model_folder.str();
  spec.base_model_sha256 = plan.base_sha256;
  if (!plan.adapted_sha256.empty()) {
    spec.adapter_path = std::exchange(spec.base_model_path, facility.adapted_folder.str());
    spec.adapter_sha256 = std::exchange(spec.base_model_sha256, plan.adapted_sha256);
  }
  spec.train_paths = settings.train_data;
  spec.validation = settings.validation;
  const RemotePath folder = attempt_folder(facility, attempt);
  spec.update_path = (folder / kUpdateFolder).str();
  spec.report_path = (folder / kReportFile).str();
  spec.metrics_path = (folder / kMetricsFile).str();
  spec.state_path = (facility.round_folder / kStateFolder).str();
  spec.on_stop = experiment.policy.on_walltime == config::OnWalltime::kResume
                     ? job::OnStop::kCheckpoint
                     : job::OnStop::kUpdate;
  spec.update_kind = experiment.aggregation.update;
  spec.update_dtype = experiment.aggregation.update_dtype;
  spec.training = settings.training;
  if (spec.training.keep_optimizer)
    spec.optimizer_path =
        optimizer_path(facility.folder, initial_optimizer_name(identity, facility, spec.key)).str();
  spec.training.first_step = (plan.round - 1) * settings.training.steps;
  if (spec.training.epochs > 0) spec.training.steps = job::kStepsOfEpochs;
  if (plan.evaluates) evaluate_only(spec);
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
