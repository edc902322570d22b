// The checks of `xffl doctor`: the prerequisites of a run, on this machine and at each facility.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "check_result.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"

namespace xffl {

/// Checks folders, free space, model and trainer of this machine. `runs` is the present or future
/// folder of runs; it need not exist. Reads the headers of the model's files, not their tensors.
std::vector<CheckResult> check_machine(const config::Experiment& experiment,
                                       const std::filesystem::path& runs,
                                       const facility::Services& services);

/// Checks log-in, credential, scheduler, work folder, quota, image, data and trainer of a facility.
/// Submits nothing; creates the work folder. Skips a check whose prerequisite has failed.
std::vector<CheckResult> check_facility(const config::Experiment& experiment,
                                        const config::Facility& facility,
                                        facility::Services& services);

}  // namespace xffl
