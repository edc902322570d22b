// `xffl doctor --job`: one short job at a facility that finds out whether a round's job would work
// there, and how fast.
//
//   WORKDIR/xffl.checks/PROJECT.FACILITY-HASH/job1/   HASH: of the settings of the facility's jobs
//     node.sh, paths.txt, job.json, config/config.json
//     model/                     random weights, made and removed by the job
//     out/                       job/check_report.h, and node-<rank>.txt of each node
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/trial/check_result.h"
#include "xffl/trial/judge.h"

namespace xffl::trial {

struct Options {
  int nodes = 2;  // at most
  std::chrono::minutes walltime{15};
  std::string version{};  // of this xffl, which the trainer should have
};

/// The facility with the resources and the command of the check job.
config::Facility job_shape(const config::Facility& facility, const facility::Programs& programs,
                           const Options& options);

/// The folders and files of a round's job, by their paths on compute nodes. The paths of
/// site_libraries() are those of compute nodes already.
std::vector<std::string> node_paths(const config::Facility& facility);

/// SHA-256 of the settings on which the results depend: the job's script, the training without its
/// number of steps, the model's config.json. Throws kNotFound without a model.
std::string settings_hash(const config::Experiment& experiment, const config::Facility& facility,
                          const facility::Programs& programs);

// checks/<facility>.json in the project's folder.
struct Kept {
  std::string utc;  // "2026-11-25T06:00:00Z"
  std::string settings_sha256;
  std::string job;  // the scheduler's id
  int job_number = 0;
  int nodes = 0, ranks = 0;
  double step_seconds = 0, step_tokens = 0;  // 0: no steps were measured
  std::vector<SetSize> validation{};         // absent from the file of an earlier release
  std::vector<CheckResult> results;
  bool operator==(const Kept&) const = default;
};
std::filesystem::path kept_file(const config::Experiment& experiment, const FacilityName& facility);
/// Empty when the facility was never checked. Throws kCorrupt.
std::optional<Kept> find_kept(const config::Experiment& experiment, const FacilityName& facility);
std::string format_kept(const Kept& kept);
Kept parse_kept(std::string_view json, const std::string& origin);

/// A line for `xffl plan`; empty when the facility was never checked.
std::string describe_kept(const config::Experiment& experiment, const config::Facility& facility,
                          const facility::Programs& programs);

struct Callbacks {
  /// Before a submission; an exception refuses it.
  std::function<void()> confirm{};
  std::function<void(const std::string& message)> on_state{};
};

/// Follows the facility's check job of these settings, and submits one if none is under way; a job
/// that has ended unseen, after a stop of this command, counts. Judges what it found, and writes
/// kept_file(). Throws kConfig, kRemote, kCancelled, and the errors of `confirm`.
Kept check_by_job(const config::Experiment& experiment, const config::Facility& facility,
                  facility::Services& services, const Options& options, std::stop_token stop,
                  const Callbacks& callbacks);

}  // namespace xffl::trial
