// The paths of a run at a facility.
//
//   <workdir>/<project>/<run>-<tag>/<facility>/         facility folder
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
/// The folder of the model with the manifest root hash `sha256`.
RemotePath model_folder(const RemotePath& facility_folder, const std::string& sha256);
std::string model_folder_name(const std::string& sha256);
bool is_model_folder_name(const std::string& name);

RemotePath optimizer_path(const RemotePath& facility_folder, const std::string& state_name);

RemotePath round_folder(const RemotePath& facility_folder, int round);
/// The round in the name of a round folder; nothing for any other name.
std::optional<int> parse_round_name(const std::string& name);

RemotePath attempt_folder(const RemotePath& facility_folder, int round, int attempt);
RemotePath attempt_folder(const FacilityPlan& plan, int round, int attempt);
/// The attempt folder in the plan's round.
RemotePath attempt_folder(const FacilityPlan& plan, int attempt);

// Names below a round folder.
inline constexpr std::string_view kStateFolder = "state";

// Names below an attempt folder.
inline constexpr std::string_view kJobFile = "job.json";
inline constexpr std::string_view kStagedScript = "submit.sh";    // for a submission by hand
inline constexpr std::string_view kModelHashes = "model.sha256";  // for `sha256sum --check`
inline constexpr std::string_view kOutFolder = "out";
inline constexpr std::string_view kUpdateFolder = "out/update";
inline constexpr std::string_view kReportFile = "out/report.json";
inline constexpr std::string_view kMetricsFile = "out/metrics.jsonl";
// The job's report of a damaged model (JobSpec::model_failure_path()). The coordinator renames the
// file after a new push.
inline constexpr std::string_view kModelFailure = "out/model.failure";
inline constexpr std::string_view kModelRepaired = "out/model.failure.mended";
inline constexpr std::string_view kClaimFolder = "claim";
// The coordinator creates the fence in place of a job's claim: afterwards no job of the attempt
// starts.
inline constexpr std::string_view kFence = "claim/fenced";

}  // namespace xffl::plan
