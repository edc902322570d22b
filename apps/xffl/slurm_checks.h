// Whether a facility's Slurm would accept a job of this experiment.
#pragma once

#include <vector>

#include "check_result.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"

namespace xffl {

/// Checks that Slurm's commands exist, that `sbatch --test-only` accepts the next job, and that
/// slurm.time is within the partition's limit. The last check is needed because most controllers
/// (EnforcePartLimits=NO) accept a longer job, which then stays pending (PartitionTimeLimit).
/// An Error of the session becomes a result.
std::vector<CheckResult> check_slurm(const config::Experiment& experiment,
                                     const config::Facility& facility, remote::Session& session,
                                     const facility::Services& services);

}  // namespace xffl
