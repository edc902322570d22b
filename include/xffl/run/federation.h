// Runs a federation: one round after another, until the experiment's number of rounds is published.
//
// The coordinator journals each effect as intent, then outcome. After a kill, the next coordinator
// looks up the effects without an outcome and continues. No attempt trains twice: at most one job
// per (round, facility, attempt) can claim the attempt's folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/driver.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/job/job_report.h"
#include "xffl/remote/session.h"

namespace xffl::run {

struct Outcome {
  int rounds_published = 0;
  std::filesystem::path model;  // the newest global model
  std::string model_sha256;
};

/// Runs `experiment` in `folder` from its state in the journal to the last round. Creates the run
/// when the folder has no journal. Throws kBusy (another coordinator), kUsage (the folder is a copy
/// of a run folder: see history::adopt_run()), kConfig (the run has another experiment; the message
/// has the lines that differ), kFailed (the policy does not allow a missing facility, the quorum is
/// missed, or the run is cancelled), kCancelled on a stop request: jobs keep running, and another
/// call continues the run. Blocks.
Outcome run_federation(const config::Experiment& experiment, const history::RunFolder& folder,
                       facility::Services& services, std::stop_token stop,
                       const facility::Observer& observer = {});

/// Brings the next job of `facility` to the facility, for a submission by hand; creates the run
/// when the folder has no journal. A later run_federation() adopts the job. Throws kBusy (a
/// coordinator runs), kUsage (there is nothing to submit now; the message has the reason), and the
/// errors of run_federation() and of facility::FacilityDriver::stage(). Blocks.
facility::StagedScript stage_job(const config::Experiment& experiment,
                                 const history::RunFolder& folder, facility::Services& services,
                                 const FacilityName& facility, std::stop_token stop);

/// Throws kConfig, with the lines that differ and the remedy, when `experiment` trains differently
/// from the run in `folder` with the state `run_state`. For a run without an imported model, only
/// the project's name must agree.
void require_same_training(const config::Experiment& experiment, const history::RunFolder& folder,
                           const history::RunState& run_state);

/// Acts on a user's request. kCancel ends the run and cancels its jobs at the facilities, durably.
/// kPause stops submitting jobs at a facility; running jobs continue and their updates are used.
/// kResume ends a pause. When a coordinator holds the journal, operate() leaves the request for the
/// coordinator and waits up to `patience`; else this process acts. Throws kNotFound (no run, an
/// unknown facility, the run has ended), kBusy (the coordinator does not answer; the request
/// stays), kUsage (the run folder is a copy), kRemote or kAuth (a facility is unreachable: call
/// again; run_federation() repeats a kCancel).
void operate(const config::Experiment& experiment, const history::RunFolder& folder,
             facility::Services& services, const history::Request& request,
             std::chrono::seconds patience);

}  // namespace xffl::run
