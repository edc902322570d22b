// The paths of a run at a facility.
//
//   <workdir>/<project>/<run>-<secret8>/<facility>/     facility folder
//     models/<first 16 digits of the SHA-256>/          model folder: a global model or adapter
//     optimizer/                                        states that jobs keep for the next round
//     r0002/                                            round folder
//       state/                                          checkpoints inside the round's jobs
//       a1/                                             attempt folder: the job's working directory
//         job.json, model.sha256                        pushed by the coordinator
//         out/                                          written by the job
//         claim/                                        made by the job that runs the attempt
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "xffl/base/names.h"
#include "xffl/config/experiment.h"
#include "xffl/plan/round_plan.h"

namespace xffl::plan {

RemotePath facility_folder(const config::Experiment& experiment, const RunIdentity& identity,
                           const config::Facility& facility);

RemotePath models_folder(const RemotePath& facility_folder);
/// The folder of the model with this manifest root hash.
RemotePath model_folder(const RemotePath& facility_folder, const std::string& sha256);
std::string model_folder_name(const std::string& sha256);
bool is_model_folder_name(const std::string& name);

RemotePath optimizer_path(const RemotePath& facility_folder, const std::string& state_name);

RemotePath round_folder(const RemotePath& facility_folder, int round);
/// The round of a round folder's name; nothing for another name.
std::optional<int> parse_round_name(const std::string& name);

RemotePath attempt_folder(const RemotePath& facility_folder, int round, int attempt);
RemotePath attempt_folder(const FacilityPlan& plan, int round, int attempt);
/// The same in the plan's round.
RemotePath attempt_folder(const FacilityPlan& plan, int attempt);

// Below a round folder.
inline constexpr std::string_view kStateFolder = "state";

// Below an attempt folder.
inline constexpr std::string_view kJobFile = "job.json";
inline constexpr std::string_view kModelHashes = "model.sha256";  // for `sha256sum --check`
inline constexpr std::string_view kOutFolder = "out";
inline constexpr std::string_view kUpdateFolder = "out/update";
inline constexpr std::string_view kReportFile = "out/report.json";
inline constexpr std::string_view kMetricsFile = "out/metrics.jsonl";
// The job's complaint about a damaged model (JobSpec::model_failure_path()), renamed after a new
// push.
inline constexpr std::string_view kModelFailure = "out/model.failure";
inline constexpr std::string_view kModelRepaired = "out/model.failure.mended";
// Created by the coordinator instead of a job: no job of the attempt starts any more.
inline constexpr std::string_view kFence = "claim/fenced";

}  // namespace xffl::plan
