// The models and updates of a run on this machine.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "recorded_run.h"
#include "xffl/checkpoint/block_hashes.h"

namespace xffl::verify {

/// Hashes all files of the folder and compares them with `root_sha256`. Writes nothing. Throws
/// kCorrupt, kRejected or kNotFound with the damaged file, kCancelled.
checkpoint::Hashes hash_folder(const std::filesystem::path& folder, const std::string& root_sha256,
                               const std::stop_token& stop);

/// The reason why the global model of a round after round 0 may be absent; empty: it must exist.
std::string reason_of_absent_model(const RecordedRun& run, int round);

void throw_if_stopped(const std::stop_token& stop);

}  // namespace xffl::verify
