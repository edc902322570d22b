// A trained model's exact values on the host, for whoever writes them.
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

/// The whole masters of a model, one unit at a time: what is in shards is gathered, and what is in
/// other pipeline stages sent to the first, for the rank that writes. Nothing of it is widened as a
/// whole: values are made as they are read. Collective: rank 0 calls values() for every parameter
/// in order, or finish(), the others finish(), and wait there for rank 0 without a limit: it may
/// take long to write a unit.
class MasterStream {
 public:
  /// `world` is the group of all ranks, whose rank 0 writes.
  MasterStream(const LoadedModel& model, comm::Group& world, Pipeline& pipeline, at::Device device);
  /// Valid until the next call. What leaves a GPU has been rounded to `dtype`. By rank 0.
  llama::Values values(size_t index, at::ScalarType dtype = at::kFloat);
  /// Takes part in gathering the units that are left.
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
  shard::UnitState whole_;  // of that unit; float32 where it is on a GPU
  std::optional<HostWindow> window_;
};

}  // namespace xffl::train
