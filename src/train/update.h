// The job's result: an HF folder with the trained weights, or with their difference from the input
// weights (a delta); with LoRA a folder with the adapter alone, in PEFT's format.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "master_stream.h"
#include "xffl/job/job_spec.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

/// Unpacks the job's base model if it comes packed, which hashes its files as they are written.
/// Otherwise checks the files; also checks those of the adapter, if there is one. Throws kRejected
/// unless the manifests have the root hashes that the job names and the files match the manifests.
/// Reports such errors to the coordinator, too (xffl/job/job_spec.h).
void prepare_input_models(const job::JobSpec& spec);

/// Writes `spec.update_path` by rename, with its manifest, and returns the manifest's root hash. A
/// delta is trained minus input weights, both in float32, rounded once. A frozen parameter has a
/// delta of zero and the weights of the base model's files. Replaces an incomplete or unreported
/// update. Calls `before_tensor` before each tensor; its exceptions end the writing. Rank 0 calls
/// write_update() while the other ranks finish() their streams; it always finishes its own stream.
std::string write_update(const job::JobSpec& spec, const LoadOptions& loaded_with,
                         const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor);

}  // namespace xffl::train
