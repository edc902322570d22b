// What the end of a job without a report says of its attempt.
#pragma once

#include "xffl/facility/machine.h"

namespace xffl::facility {

/// Pure. `over` is what the scheduler said last: ended, cancelled, or no longer known.
/// `not_unpacked` is what the job said of the model that it was given; empty: nothing.
AttemptFailure failure_of(const submit::JobStatus& over, const history::Attempt& attempt,
                          const std::string& not_unpacked);

}  // namespace xffl::facility
