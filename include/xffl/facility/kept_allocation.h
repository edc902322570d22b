// Jobs that stay for the facility's next round (facilities.<f>.slurm.keep_allocation): which job
// serves which attempts, as the journal tells it. Pure, except for remove_round.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/history/run_state.h"
#include "xffl/plan/round_plan.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

/// What the journal knows of one facility in a round.
using StateOf = std::function<history::FacilityState(int round)>;

/// The folder of the attempt that a job of `round` may stay for; empty: it ends with its report,
/// because it was not asked to stay or because no job of this run comes after it.
std::optional<RemotePath> stays_for(const config::Experiment& experiment,
                                    const plan::FacilityPlan& facility, int round);

/// The offer that the job of an attempt may find: of the attempt accepted in the round before. Only
/// a round's first attempt has one.
std::optional<submit::KeptAllocation> kept_allocation_for(const config::Experiment& experiment,
                                                          const plan::FacilityPlan& facility,
                                                          int round, int attempt,
                                                          const StateOf& state);
/// What the job of the round's accepted attempt may offer; none while there is none.
std::optional<submit::KeptAllocation> kept_allocation_of(const plan::FacilityPlan& facility,
                                                         int round, const StateOf& state);

/// The attempt that `job` was submitted for, when it came to (round, attempt) by staying: Slurm
/// knows it by that attempt's name and folder. Else (round, attempt) itself.
struct AttemptNumber {
  int round = 0;
  int attempt = 0;
  bool operator==(const AttemptNumber&) const = default;
};
AttemptNumber first_attempt(AttemptNumber now, const JobId& job, const StateOf& state);

/// Removes what round `old` left at the facility, as `newest` is published. Of the attempt that the
/// newest round's job began with the few small files stay, as that job needs them when Slurm starts
/// it again, until another job has come. Throws kCancelled on `stop`.
void remove_round(remote::Session& session, const plan::FacilityPlan& facility, int old, int newest,
                  const StateOf& state, const std::stop_token& stop = {});

}  // namespace xffl::facility
