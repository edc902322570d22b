// The job's result: an HF folder with the trained weights, or with what training added to the given
// ones.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "xffl/job/job_spec.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

/// Throws kRejected unless `folder`'s manifest has the root hash `sha256` and its files are as the
/// manifest says.
void check_base_model(const std::filesystem::path& folder, const std::string& sha256);

/// Writes `spec.update_path` by rename, with its manifest; a delta is trained minus given, both in
/// float32, rounded once. An incomplete or unreported one that is there is replaced. Returns the
/// manifest's root hash. `before_tensor` is called before each tensor; what it throws ends the
/// writing.
std::string write_update(const job::JobSpec& spec, const LoadedModel& model,
                         const std::function<void()>& before_tensor);

}  // namespace xffl::train
