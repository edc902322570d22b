// Kept allocations: jobs that wait for the facility's next round
// (facilities.<f>.slurm.keep_allocation). All functions but remove_round() are pure.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/history/run_history.h"
#include "xffl/plan/round_plan.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

/// The state of one facility in a round, by the journal.
using StateOf = std::function<history::FacilityState(int round)>;

/// The folder of the attempt for which a job of `round` keeps its allocation; none: it ends with
/// its report, because the facility keeps no allocations or this run has no job after it.
std::optional<RemotePath> next_attempt_folder(const config::Experiment& experiment,
                                              const plan::FacilityPlan& facility, int round);

/// The kept allocation that may take an attempt: of the attempt accepted in the round before. Only
/// for a round's first attempt.
std::optional<submit::KeptAllocation> kept_allocation_for(const config::Experiment& experiment,
                                                          const plan::FacilityPlan& facility,
                                                          int round, int attempt,
                                                          const StateOf& state);
/// The allocation that the job of the round's accepted attempt may keep; none before acceptance.
std::optional<submit::KeptAllocation> kept_allocation_of(const plan::FacilityPlan& facility,
                                                         int round, const StateOf& state);

/// The attempt that `job` was submitted for: Slurm knows the job by that attempt's name and folder.
/// It differs from (round, attempt) when a kept allocation took (round, attempt).
struct AttemptNumber {
  int round = 0;
  int attempt = 0;
  bool operator==(const AttemptNumber&) const = default;
};
AttemptNumber first_attempt(AttemptNumber now, const JobId& job, const StateOf& state);

/// Removes the files of round `old` at the facility when `newest` is published. The small files of
/// the attempt that the newest round's job was submitted for stay until another job is submitted,
/// because Slurm may requeue that job. Throws kCancelled on `stop`.
void remove_round(remote::Session& session, const plan::FacilityPlan& facility, int old, int newest,
                  const StateOf& state, const std::stop_token& stop = {});

}  // namespace xffl::facility
