// After the last round: what the global model that no round trains any further is worth.
#pragma once

#include <stop_token>

#include "xffl/facility/context.h"

namespace xffl::run {

/// Has the facilities of `plan`, which evaluates, measure the last global model, from wherever the
/// journal says that is. What cannot be measured is told and recorded as missing; it is no failure.
/// Throws kCancelled on `stop`.
void evaluate_last(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop);

/// Cancels the jobs of an evaluation that was begun and is no longer wanted (policy.evaluate_last).
/// A facility that cannot be told keeps its job, with a warning.
void drop_evaluation(facility::Context& context);

}  // namespace xffl::run
