// What the folders are called in which attempts leave the optimizer's state for the next round.
#pragma once

#include <string>
#include <string_view>

#include "xffl/job/job_spec.h"

namespace xffl::job {

/// The last part of JobSpec::optimizer_path where there is nothing to begin with.
inline constexpr std::string_view kNoOptimizerState = "none";

/// "r0002-<nonce>": what this attempt leaves.
std::string optimizer_state_name(const JobKey& key);

}  // namespace xffl::job
