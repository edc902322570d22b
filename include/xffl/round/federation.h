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
#include "xffl/job/job_report.h"
#include "xffl/remote/session.h"
#include "xffl/round/history.h"
#include "xffl/round/run_folder.h"
#include "xffl/submit/scheduler.h"

namespace xffl::round {

// What a job's script needs to know about the programs at a facility.
struct Programs {
  std::filesystem::path xffl;     // starts ranks on this machine
  std::filesystem::path trainer;  // the built-in trainer
};

// The objects that touch the world; a simulation or a test passes others.
struct World {
  Clock& clock;
  std::function<std::unique_ptr<remote::Session>(const config::Facility&)> connect;
  std::function<std::unique_ptr<submit::Scheduler>(const config::Facility&)> scheduler;
  Programs programs;
};

/// This machine's clock; sessions and schedulers by the facility's kinds; programs beside the
/// running one.
World make_world(Clock& clock);

// What a listener may show while rounds go on; called from any thread, one at a time.
struct Observer {
  std::function<void(int round, const FacilityName&, const std::string& metrics_line)> on_training;
  std::function<void(int round, const std::vector<Accepted>&, double seconds)> on_round;
};

struct Outcome {
  int rounds_published = 0;
  std::filesystem::path model;  // the newest global model
  std::string model_sha256;
};

/// Runs `experiment` in `folder` from wherever its journal says it is, to the last round. Creates
/// the run when the folder has no journal. Throws kBusy (another coordinator), kConfig (the
/// experiment is not the one that the run was created with: says which lines differ), kFailed (a
/// facility is missing and on_missing does not allow it, quorum missed, run cancelled), kCancelled
/// on a stop request: jobs go on, calling again continues. Blocks.
Outcome run_federation(const config::Experiment& experiment, const RunFolder& folder, World& world,
                       std::stop_token stop, const Observer& observer = {});

/// Ends the run: cancels its jobs at the facilities, durably. When a coordinator runs, asks it to
/// do so and waits for up to `patience`; else does it here. Throws kNotFound (no run), kRemote (a
/// facility did not answer; call again).
void cancel_run(const config::Experiment& experiment, const RunFolder& folder, World& world,
                std::chrono::seconds patience);

}  // namespace xffl::round
