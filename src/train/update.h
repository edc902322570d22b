// The job's result: an HF folder with the trained weights, or with what training added to the given
// ones; with LoRA a folder with the adapter alone, in PEFT's format.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "master_stream.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

/// Throws kRejected unless the manifests of the job's base model and, if there is one, of its
/// adapter have the root hashes that the job names, and their files are as the manifests say. The
/// base model is made first when it comes packed; its files were hashed as they were written then.
/// What is wrong with them is also said to the coordinator (xffl/job/model_failure.h).
void provide_given_models(const job::JobSpec& spec);

/// Writes `spec.update_path` by rename, with its manifest; a delta is trained minus given, both in
/// float32, rounded once. Of a frozen parameter it is zero, and its weights are those of the base
/// model's files. An incomplete or unreported one that is there is replaced. Returns the
/// manifest's root hash. `before_tensor` is called before each tensor; what it throws ends the
/// writing. By rank 0, while the others finish() their streams; its own is finished in any case.
std::string write_update(const job::JobSpec& spec, const LoadOptions& loaded_with,
                         const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor);

}  // namespace xffl::train
