// Flat buffers in files, one for each part that a rank of a shard group holds.
//
//   part-0001-of-0004.safetensors               unit0000.master, unit0000.first, unit0001...:
//   group-0002.part-0001-of-0004.safetensors    each this part's elements of the unit
//
// float32, or bfloat16 where the job keeps them so; masters in two parts are stored joined, as
// float32. What is read may have the other type: it is converted.
//
// A unit lies in consecutive parts: all of them, or those of its pipeline stage. Written by the
// ranks that hold the parts, read by any number of ranks with any sharding and any number of
// stages.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "job_groups.h"
#include "xffl/base/json.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

/// Something that is kept for each unit: a rank's part of it, shaped as its masters are.
struct UnitBuffers {
  std::string name;
  std::vector<at::Tensor> units;         // float32 or bfloat16
  std::vector<at::Tensor> remainders{};  // of masters in two parts: the other ones
};

class StateParts {
 public:
  /// All of these must outlive this object.
  StateParts(const JobGroups& groups, const LoadedModel& model)
      : groups_(groups), model_(model), parameters_(*model.parameters) {}

  /// Of all stages.
  int num_parts() const {
    return static_cast<int>(model_.stages.size()) * parameters_.num_state_parts();
  }

  /// This rank's part of `buffers`, unless another rank holds the same.
  void write(const std::filesystem::path& folder, const std::vector<UnitBuffers>& buffers) const;
  /// From all parts of this rank's group that are there. Throws kCorrupt when a unit is in none.
  void read(const std::filesystem::path& folder, int num_parts,
            const std::vector<UnitBuffers>& buffers) const;

  /// Name, size and SHA-256 of every file of all groups that write() has made; once, by one rank.
  Json files(const std::filesystem::path& folder) const;

 private:
  std::string name(int group, int part, int num_parts) const;

  const JobGroups& groups_;
  const LoadedModel& model_;
  const shard::FlatParameters& parameters_;
};

/// A file of `files` that is not there, not whole or has other bytes; empty when all are as
/// written. Throws kIo where one cannot be read.
std::string damaged_file(const std::filesystem::path& folder, const Json& files);

}  // namespace xffl::train
