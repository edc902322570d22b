// A round, from its plan to the published global model.
#pragma once

#include <stop_token>

#include "xffl/facility/context.h"

namespace xffl::run {

/// Records the plan, once.
void record_plan(facility::Context& context, const plan::RoundPlan& plan);

/// Runs `plan` from wherever the journal says it is. Throws kFailed when a facility is missing and
/// the policy does not allow it, kCancelled on `stop`.
void run_round(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop);

/// Cancels the jobs of the round's open attempts and records why. Throws kRemote or kAuth when a
/// facility could not be told; all others have been.
void cancel_round(facility::Context& context, const plan::RoundPlan& plan,
                  const std::string& reason);

/// Tells every facility again of the cancellations, in rounds up to `last`, that it could not be
/// told of. Those that it still cannot be told of are logged, with what a person may do.
void cancel_leftovers(facility::Context& context, int last, std::stop_token stop);

/// Lets a job of the facility go that stays for its next attempt; what fails is logged.
void release_allocation(facility::Context& context, const plan::RoundPlan& plan,
                        const FacilityName& name);

}  // namespace xffl::run
