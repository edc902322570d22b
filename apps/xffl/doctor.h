// What must be in place before a run, checked where it is: on this machine and at a facility.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "finding.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/services.h"

namespace xffl {

/// Folders, free space, model, trainer of this machine. `runs` is where runs are or will be; it
/// need not be there. Of the model its files' heads are read, not its numbers.
std::vector<Finding> examine_this_machine(const config::Experiment& experiment,
                                          const std::filesystem::path& runs,
                                          const facility::Services& services);

/// Log-in, credential, scheduler, work folder, quota, image, data and trainer of a facility.
/// Submits nothing; creates its work folder. A check that cannot be made because an earlier one
/// failed is left out.
std::vector<Finding> examine_facility(const config::Experiment& experiment,
                                      const config::Facility& facility,
                                      facility::Services& services);

}  // namespace xffl
