// The job's result: an HF folder with the trained weights, or with their difference from the input
// weights (a delta). With LoRA the result is a folder with the adapter alone, in PEFT's format.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "host_copies.h"
#include "xffl/comm/group.h"
#include "xffl/job/job_spec.h"
#include "xffl/llama/model_files.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

/// The whole masters of a model, one unit at a time. The ranks gather shards, and other pipeline
/// stages send their units to the first stage. Reading converts the values, so no unit is widened
/// as a whole. Collective: rank 0 calls values() for every parameter in order, or finish(). The
/// other ranks call finish() and wait for rank 0 without a time-out, because writing a unit may
/// take long.
class MasterStream {
 public:
  /// `world` is the group of all ranks; its rank 0 writes.
  MasterStream(const LoadedModel& model, comm::Group& world, Pipeline& pipeline, at::Device device);
  /// The values of a parameter, valid until the next call; rank 0 only. A GPU rounds the values to
  /// `dtype` before the copy to the host.
  llama::Values values(size_t index, at::ScalarType dtype = at::kFloat);
  /// Takes part in gathering the remaining units.
  void finish();

 private:
  void gather_up_to(int unit);
  shard::UnitState gather(int unit);

  const LoadedModel& model_;
  comm::Group& world_;
  Pipeline& pipeline_;
  at::Device device_;
  shard::FlatLayout layout_;  // of all units
  int unit_ = -1;
  shard::UnitState whole_;  // of that unit; float32 on a GPU
  std::optional<HostWindow> window_;
};

/// Unpacks a packed base model, and hashes the model's files while writing them. Checks the files
/// of an unpacked base model, and the files of the adapter, if there is one. Throws kRejected
/// unless the manifests have the root hashes that the job names and the files match the manifests.
/// Reports such errors to the coordinator, too (xffl/job/job_spec.h).
void prepare_input_models(const job::JobSpec& spec);

/// Writes `spec.update_path` by rename, with its manifest, and returns the manifest's root hash. A
/// delta is trained minus input weights, both in float32, rounded once. A frozen parameter has a
/// delta of zero and the weights of the input model or adapter. Replaces an incomplete or
/// unreported update. Calls `before_tensor` before each tensor; its exceptions end the writing.
/// Rank 0 calls write_update() while the other ranks finish() their streams; write_update() always
/// finishes rank 0's stream.
std::string write_update(const job::JobSpec& spec, const LoadOptions& loaded_with,
                         const LoadedModel& model, MasterStream& masters,
                         const std::function<void()>& before_tensor);

}  // namespace xffl::train
