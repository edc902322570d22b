// How a job says that the model to start from is not what it should be: in the file
// "model.failure" of the folder that gets its report. The coordinator then sends it again, and the
// attempt is not held against its training.
#pragma once

#include <filesystem>
#include <string>

#include "xffl/job/job_spec.h"

namespace xffl::job {

/// Beside spec.report_path.
std::filesystem::path model_failure_path(const JobSpec& spec);

/// Writes `reason` to `path`, whole or not at all; failing to is logged.
void note_model_failure(const std::filesystem::path& path, const std::string& reason);

}  // namespace xffl::job
