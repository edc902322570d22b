// One facility's training, once, here: the single-node test of what `xffl run` will do there.
#pragma once

#include <filesystem>
#include <string>

namespace xffl {

/// Runs the first round of `facility` (may be empty when the project has one only) on this machine
/// with `world_size` ranks, under `<project>/simulations`, and prints loss, tokens/s and memory. It
/// is a federation of one facility with local objects. Returns the exit code; throws as
/// run::run_federation does.
int simulate_facility(const std::filesystem::path& project, const std::string& facility,
                      int world_size);

}  // namespace xffl
