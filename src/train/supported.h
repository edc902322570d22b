// Which trainings this program can do.
#pragma once

#include "xffl/job/job_spec.h"
#include "xffl/job/supported.h"

namespace xffl::train {

/// Throws kConfig, naming the keys, for what is not supported, alone or together. Looks at the job
/// only: called before anything is allocated.
void check_supported(const job::JobSpec& spec, const job::Ranks& ranks);

}  // namespace xffl::train
