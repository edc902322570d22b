// Copies what a manifest names between a facility and this machine.
//
// A transfer is resumable: bytes already present are checked, not sent again. On return every file
// has its manifest's size and hash and its final name; on error the destination holds only "*.part"
// files besides finished ones, which the next call continues. Names come from a checked manifest,
// never from a listing of the far side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>

#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

struct Progress {
  uint64_t done_bytes = 0;  // of the files, present ones included
  uint64_t total_bytes = 0;
};
using OnProgress = std::function<void(const Progress&)>;

struct Result {
  uint64_t moved_bytes = 0;  // really sent or received by this call
};

/// Puts the local folder `from` (as `manifest` says) into `to` at the facility; manifest.json is
/// written there last, so a folder with manifest.json is complete. Files whose size is right and
/// that a complete manifest.json of the same root hash vouches for are not sent again. The trainer
/// checks the hashes at the far end before it uses them. Throws kRejected when a local file is not
/// as the manifest says, kRemote, kIo, kCancelled.
Result push(remote::Session& session, const std::filesystem::path& from,
            const checkpoint::Manifest& manifest, const RemotePath& to, std::stop_token stop,
            const OnProgress& on_progress = {});

/// Brings the folder `from` to `to`, which is created. `root_sha256` is what the facility's report
/// promised; the far manifest.json must have it. Each file's hash is computed on arrival; no byte
/// beyond the manifest's sizes is accepted, and the manifest's total may not exceed `max_bytes`. A
/// file that arrives wrong is fetched once more, then refused. Throws kRejected or kCorrupt (which
/// file, expected, found), kNotFound, kRemote, kIo, kCancelled (part files stay).
Result fetch(remote::Session& session, const RemotePath& from, const std::string& root_sha256,
             uint64_t max_bytes, const std::filesystem::path& to, std::stop_token stop,
             const OnProgress& on_progress = {});

}  // namespace xffl::transfer
