// Streams a trained model's exact values to the rank that writes the update.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "host_copies.h"
#include "xffl/comm/group.h"
#include "xffl/llama/weights.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/loaded_model.h"
#include "xffl/train/pipeline.h"

namespace xffl::train {

/// The whole masters of a model, one unit at a time: shards are gathered, and other pipeline stages
/// send their units to the first stage. Values are converted as they are read, so no unit is
/// widened as a whole. Collective: rank 0 calls values() for every parameter in order, or finish();
/// the other ranks call finish() and wait for rank 0 without a timeout, because writing a unit may
/// take long.
class MasterStream {
 public:
  /// `world` is the group of all ranks; its rank 0 writes.
  MasterStream(const LoadedModel& model, comm::Group& world, Pipeline& pipeline, at::Device device);
  /// The values of a parameter, valid until the next call; rank 0 only. A GPU rounds them to
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

}  // namespace xffl::train
