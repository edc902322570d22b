// The files of a checkpoint: a folder with state.json and one file for each part of the flat
// buffers that a rank of a shard group holds. The folder is complete or absent.
//
//   part-0001-of-0004.safetensors               unit0000.master, unit0000.first, unit0001...:
//   group-0002.part-0001-of-0004.safetensors    each this part's elements of the unit
//
// Buffers are float32, or bfloat16 if the job keeps them in bfloat16; split masters are joined and
// stored as float32. Reading converts between the two types.
//
// A unit lies in consecutive parts: in all parts, or in the parts of its pipeline stage. The ranks
// that hold the parts write them; any number of ranks, with any sharding and any number of stages,
// can read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "group_exchange.h"
#include "xffl/base/json.h"
#include "xffl/comm/group.h"
#include "xffl/shard/flat_parameters.h"
#include "xffl/train/loaded_model.h"

namespace xffl::train {

class CheckpointParts {
 public:
  /// Both must outlive this object.
  CheckpointParts(const JobGroups& groups, const LoadedModel& model)
      : groups_(groups), model_(model), parameters_(*model.parameters) {}

  /// The number of parts of all stages.
  int num_parts() const {
    return static_cast<int>(model_.stages.size()) * parameters_.num_state_parts();
  }

  /// Writes this rank's part of `buffers`, unless this rank holds a copy of another rank's part.
  void write(const std::filesystem::path& folder, const std::vector<UnitBuffers>& buffers) const;
  /// Reads `buffers` from the parts of this rank's group. Throws kCorrupt if no part holds a unit.
  void read(const std::filesystem::path& folder, int num_parts,
            const std::vector<UnitBuffers>& buffers) const;

  /// Name, size and SHA-256 of every file that write() made in all groups; called once, by one
  /// rank.
  Json files(const std::filesystem::path& folder) const;

 private:
  std::string name(int group, int part, int num_parts) const;

  const JobGroups& groups_;
  const LoadedModel& model_;
  const shard::FlatParameters& parameters_;
};

/// The first file of `files` that is missing, truncated or changed; empty if all are intact. Throws
/// kIo if a file cannot be read.
std::string damaged_file(const std::filesystem::path& folder, const Json& files);

/// The final path of a checkpoint, and the path under which it is written.
struct CheckpointFolder {
  std::filesystem::path target;
  std::filesystem::path temporary;
};

/// Writes the parts of all ranks, then state.json, and renames; collective over `group`, the world.
/// Rank 0 calls `document`, the content of state.json, after the parts are written. A folder at
/// `target` is replaced, unless `may_stay`, which rank 0 calls, returns true: then the new one is
/// discarded. Throws kIo on all ranks if one rank cannot write, and removes the temporary folder,
/// so that a full disk does not stay full.
void write_checkpoint(comm::Group& group, at::Device device, const CheckpointFolder& folder,
                      const CheckpointParts& parts, const std::vector<UnitBuffers>& buffers,
                      const std::function<Json()>& document,
                      const std::function<bool()>& may_stay = {});

/// The entries of a folder, as far as it can be read. Does not throw.
std::vector<std::filesystem::path> entries_in(const std::filesystem::path& folder);

/// Reads a checkpoint's state.json. Throws kNotFound, kIo, kCorrupt.
Json read_checkpoint_json(const std::filesystem::path& folder);

}  // namespace xffl::train
