// A federation: rounds, one after the other, until the experiment's number is published.
//
// Every effect is journalled as intent, then outcome. After a kill, the next coordinator looks up
// the effects without an outcome and continues. Nothing is trained twice: at most one job per
// (round, facility, attempt) can claim its folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
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
/// of a run's: see history::adopt_run()), kConfig (the run was created with another experiment; the
/// message has the lines that differ), kFailed (a facility is missing and on_missing does not allow
/// it, quorum missed, run cancelled), kCancelled on a stop request: jobs keep running, and another
/// call continues. Blocks.
Outcome run_federation(const config::Experiment& experiment, const history::RunFolder& folder,
                       facility::Services& services, std::stop_token stop,
                       const facility::Observer& observer = {});

/// Throws kConfig, with the lines that differ and the remedy, when `experiment` trains otherwise
/// than the run in `folder` with the state `run_state`. A run without an imported model keeps only
/// the project's name.
void require_same_training(const config::Experiment& experiment, const history::RunFolder& folder,
                           const history::RunState& run_state);

/// Acts on a user's request. kCancel ends the run and cancels its jobs at the facilities, durably.
/// kPause stops submitting jobs at a facility; running jobs continue and their updates are used.
/// kResume ends a pause. A coordinator that holds the journal gets the request, and this function
/// waits up to `patience` for it; else this process acts. Throws kNotFound (no run, an unknown
/// facility, the run has ended), kBusy (no answer of the coordinator; the request stays), kUsage (a
/// copy), kRemote or kAuth (a facility is unreachable; call again; run_federation() repeats a
/// kCancel).
void operate(const config::Experiment& experiment, const history::RunFolder& folder,
             facility::Services& services, const history::Request& request,
             std::chrono::seconds patience);

}  // namespace xffl::run
