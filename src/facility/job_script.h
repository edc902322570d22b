// The script that a facility's scheduler runs for one attempt.
#pragma once

#include <optional>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"
#include "xffl/job/job_spec.h"

namespace xffl::facility {

/// Renders the facility's template. `next_folder`: of the attempt that the job may stay for
/// (stays_for). Throws kConfig with the template's line.
std::string job_script(const config::Facility& facility, const job::JobSpec& spec,
                       const RemotePath& folder, const Programs& programs,
                       const std::optional<RemotePath>& next_folder = {});

}  // namespace xffl::facility
