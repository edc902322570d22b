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

/// Returns one facility's state in a round from the journal.
using StateOf = std::function<history::FacilityState(int round)>;

/// The folder of the attempt for which a job of `round` keeps its allocation. None when the job
/// ends with its report: the facility keeps no allocations, or this run has no later job there.
std::optional<RemotePath> next_attempt_folder(const config::Experiment& experiment,
                                              const plan::FacilityPlan& facility, int round);

/// The kept allocation that may run this attempt: the allocation of the attempt accepted in the
/// previous round. None unless the attempt is its round's first.
std::optional<submit::KeptAllocation> kept_allocation_for(const config::Experiment& experiment,
                                                          const plan::FacilityPlan& facility,
                                                          int round, int attempt,
                                                          const StateOf& state);
/// The allocation that the job of the round's accepted attempt may keep; none before acceptance.
std::optional<submit::KeptAllocation> kept_allocation_of(const plan::FacilityPlan& facility,
                                                         int round, const StateOf& state);

/// The attempt for which xffl submitted `job`; Slurm knows the job by this attempt's name and
/// folder. If the attempt `now` runs in a kept allocation, the attempt is an earlier one than
/// `now`.
struct AttemptNumber {
  int round = 0;
  int attempt = 0;
  bool operator==(const AttemptNumber&) const = default;
};
AttemptNumber first_attempt(AttemptNumber now, const JobId& job, const StateOf& state);

/// Removes the files of round `old` at the facility when `newest` is published. The small files of
/// one attempt stay: Slurm may requeue the newest round's job, which then needs the files of the
/// attempt that it was submitted for. They stay until xffl submits another job. Throws kCancelled
/// on `stop`.
void remove_round(remote::Session& session, const plan::FacilityPlan& facility, int old, int newest,
                  const StateOf& state, const std::stop_token& stop = {});

}  // namespace xffl::facility
