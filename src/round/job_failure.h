// What the end of a job without a report says of its attempt.
#pragma once

#include "xffl/round/course.h"

namespace xffl::round {

/// Pure. `over` is what the scheduler said last: ended, cancelled, or no longer known.
AttemptFailure failure_of(const submit::JobStatus& over, const JobId& job);

}  // namespace xffl::round
