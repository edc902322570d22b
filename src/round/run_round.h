// A round, from its plan to the published global model.
#pragma once

#include <stop_token>

#include "context.h"

namespace xffl::round {

/// Runs `plan` from wherever the journal says it is. Throws kFailed when a facility is missing and
/// the policy does not allow it, kCancelled on `stop`.
void run_round(Context& context, const plan::RoundPlan& plan, std::stop_token stop);

/// Cancels the jobs of the round's open attempts and records why.
void cancel_round(Context& context, const plan::RoundPlan& plan, const std::string& reason);

}  // namespace xffl::round
