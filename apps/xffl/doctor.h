// The checks of `xffl doctor`: the prerequisites of a run, on this machine and at each facility.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/facility/model_bytes.h"
#include "xffl/facility/services.h"
#include "xffl/trial/check_result.h"

namespace xffl {

using trial::CheckResult;

/// Checks log-in, credential, scheduler, work folder, quota, image, data and trainer of a facility.
/// Submits nothing; creates the work folder. Skips a check whose prerequisite has failed.
std::vector<CheckResult> check_facility(const config::Experiment& experiment,
                                        const config::Facility& facility,
                                        facility::Services& services);

/// The sizes of the model; empty when the model is unreadable, a problem that another check
/// reports.
std::optional<facility::ModelBytes> bytes_of_model(const config::Experiment& experiment);

std::string gigabytes(uint64_t bytes);  // "1.5 GB"

/// Compares the free bytes of `folder` with the bytes that a round needs.
CheckResult check_free_space(const std::string& folder, uint64_t free, uint64_t needed);

}  // namespace xffl
