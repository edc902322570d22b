// A federation: rounds, one after the other, until the experiment's number is published.
//
// Every effect is journalled as intent, then outcome; a coordinator that was killed looks up what
// is in doubt and continues. Nothing is trained twice: at most one job per (round, facility,
// attempt) can claim its folder.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/observer.h"
#include "xffl/facility/services.h"
#include "xffl/history/requests.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_state.h"
#include "xffl/job/job_report.h"
#include "xffl/remote/session.h"

namespace xffl::run {

struct Outcome {
  int rounds_published = 0;
  std::filesystem::path model;  // the newest global model
  std::string model_sha256;
};

/// Runs `experiment` in `folder` from wherever its journal says it is, to the last round. Creates
/// the run when the folder has no journal. Throws kBusy (another coordinator), kUsage (the folder
/// is a copy of a run's: see history::adopt_run()), kConfig (the
/// experiment is not the one that the run was created with: says which lines differ), kFailed (a
/// facility is missing and on_missing does not allow it, quorum missed, run cancelled), kCancelled
/// on a stop request: jobs go on, calling again continues. Blocks.
Outcome run_federation(const config::Experiment& experiment, const history::RunFolder& folder,
                       facility::Services& services, std::stop_token stop,
                       const facility::Observer& observer = {});

/// Throws kConfig, with the lines that differ and what to do, when `experiment` would train
/// something else than the run in `folder`, whose journal says `history`. A run whose first model
/// was never imported keeps the project's name only.
void require_same_training(const config::Experiment& experiment, const history::RunFolder& folder,
                           const history::RunState& run_state);

/// Does what a person asks of the run. kCancel ends it: its jobs at the facilities are cancelled,
/// durably. kPause lets a facility begin no further job (what runs goes on), kResume ends that.
/// When a coordinator holds the journal it is asked and its answer awaited for up to `patience`;
/// else it is done here. Throws kNotFound (no run, an unknown facility, the run is over), kBusy
/// (the coordinator has not answered; the request stays), kUsage (a copy), kRemote or kAuth (a
/// facility could not be told; call again; run_federation() repeats a kCancel).
void operate(const config::Experiment& experiment, const history::RunFolder& folder,
             facility::Services& services, const history::Request& request,
             std::chrono::seconds patience);

}  // namespace xffl::run
