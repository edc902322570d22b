// The files of a checkpoint: a folder with state.json and one file for each part of the flat
// buffers that a rank of a shard group holds. The folder is complete or absent.
//
//   part-0001-of-0004.safetensors               unit0000.master, unit0000.first, unit0001...:
//   group-0002.part-0001-of-0004.safetensors    each this part's elements of the unit
//
// Buffers are float32, or bfloat16 if the job keeps them in bfloat16. The writer joins split
// masters to float32. Reading converts between the two types.
//
// A unit lies in consecutive parts: in all parts, or in the parts of its pipeline stage. The ranks
// that hold the parts write them. Any number of ranks, with any sharding and any number of stages,
// can read the parts.
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
  /// `groups` and `model` must outlive this object.
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

  /// Returns name, size and SHA-256 of every file that write() made in all groups. One rank calls
  /// files() once.
  Json files(const std::filesystem::path& folder) const;

 private:
  std::string name(int group, int part, int num_parts) const;

  const JobGroups& groups_;
  const LoadedModel& model_;
  const shard::FlatParameters& parameters_;
};

/// Returns the first file of `files` that is missing, truncated or changed; empty if all files are
/// intact. Throws kIo if a file cannot be read.
std::string damaged_file(const std::filesystem::path& folder, const Json& files);

/// The final path of a checkpoint, and the temporary path of its writing.
struct CheckpointFolder {
  std::filesystem::path target;
  std::filesystem::path temporary;
};

/// Writes the parts of all ranks, then state.json, and renames the folder; collective over `group`,
/// the world. Rank 0 calls `document`, which returns the content of state.json, after all ranks
/// have written their parts. The new folder replaces a folder at `target`, unless `may_stay`, which
/// rank 0 calls, returns true: rank 0 then discards the new folder. If one rank cannot write,
/// throws kIo on all ranks and removes the temporary folder, so that a full disk does not stay
/// full.
void write_checkpoint(comm::Group& group, at::Device device, const CheckpointFolder& folder,
                      const CheckpointParts& parts, const std::vector<UnitBuffers>& buffers,
                      const std::function<Json()>& document,
                      const std::function<bool()>& may_stay = {});

/// Returns a folder's entries; none if there is no folder. Throws kIo if the folder cannot be read.
std::vector<std::filesystem::path> entries_in(const std::filesystem::path& folder);

/// Reads a checkpoint's state.json. Throws kNotFound, kIo, kCorrupt, kUnsupported (another
/// version).
Json read_checkpoint_json(const std::filesystem::path& folder);

}  // namespace xffl::train
