// A folder of parts (state_parts.h) and a state.json that says what they are; whole, or absent.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "state_parts.h"
#include "xffl/base/json.h"
#include "xffl/comm/group.h"

namespace xffl::train {

/// Where a folder is written, and what it is called when it is whole.
struct StateFolder {
  std::filesystem::path target;
  std::filesystem::path temporary;
};

/// Writes the parts of all ranks, then what `document` says as state.json, and renames; collective
/// over `group`, the world. `document` is called by rank 0 when the parts are there. What is at
/// `target` goes, unless `may_stay`, asked by rank 0, takes it for the same. Throws kIo on all
/// ranks when one cannot write, and leaves nothing of it: a full disk would stay full.
void write_state_folder(comm::Group& group, at::Device device, const StateFolder& folder,
                        const StateParts& parts, const std::vector<UnitBuffers>& buffers,
                        const std::function<Json()>& document,
                        const std::function<bool()>& may_stay = {});

/// What is in a folder: as far as it can be read, without errors.
std::vector<std::filesystem::path> entries_in(const std::filesystem::path& folder);

/// A folder's state.json. Throws kNotFound, kIo, kCorrupt.
Json read_state_file(const std::filesystem::path& folder);

}  // namespace xffl::train
