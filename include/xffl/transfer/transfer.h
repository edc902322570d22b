// Copies what a manifest names between a facility and this machine.
//
// A transfer is resumable at the last verified chunk: bytes already present are checked, not moved
// again. On return every file has its manifest's size and hash and its final name; on error the
// destination holds only "*.part" files besides finished ones, which the next call continues. Names
// come from a checked manifest, never from a listing of the far side. Small files travel together,
// so that a small model costs few round trips.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>

#include "xffl/base/spare_memory.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/checked_files.h"

namespace xffl::transfer {

/// The two ways to a facility: `control` for small files and questions, `bulk` for large files, by
/// the host that is meant for them. Both see the same paths; often they are one session.
struct Endpoint {
  Endpoint(remote::Session& session) : control(session), bulk(session) {}
  Endpoint(remote::Session& log_in, remote::Session& mover) : control(log_in), bulk(mover) {}

  remote::Session& control;
  remote::Session& bulk;
};

struct Progress {
  uint64_t done_bytes = 0;  // of the files, present ones included
  uint64_t total_bytes = 0;
  uint64_t moved_bytes = 0;  // really sent or received by this call
};
/// Called by one thread at a time, not always the caller's.
using OnProgress = std::function<void(const Progress&)>;

struct Result {
  uint64_t moved_bytes = 0;  // really sent or received by this call
};

/// Puts the local folder `from` (as `manifest` says) into `to` at the facility; manifest.json is
/// written there last, so a folder with manifest.json is complete. Not sent again is what a
/// complete manifest.json of the same root hash vouches for, what a folder beside `to` holds and
/// its own manifest.json names with the same hash (it is linked), and of an interrupted file the
/// chunks whose hash the facility confirms or that are read back. Local files are hashed on the
/// way, large ones only when `checked` does not know them; the trainer checks the hashes at the far
/// end before it uses them. Throws kRejected when a local file is not as the manifest says, kIo
/// when there is no room at the facility (which folder, needed, free), kRemote, kCancelled.
Result push(const Endpoint& facility, const std::filesystem::path& from,
            const checkpoint::Manifest& manifest, const RemotePath& to, std::stop_token stop,
            const OnProgress& on_progress = {}, CheckedFiles* checked = nullptr);

/// push() where a job has found that what lies there is not what its manifest.json says: it is no
/// complete folder any more until every chunk of large files has been compared and small ones were
/// sent again; what the manifest does not name goes away. Nothing is linked. An interrupted one is
/// to be done again: push() would believe the names that are there.
Result repair(const Endpoint& facility, const std::filesystem::path& from,
              const checkpoint::Manifest& manifest, const RemotePath& to, std::stop_token stop,
              const OnProgress& on_progress = {}, CheckedFiles* checked = nullptr);

/// Whether the folder has this very manifest.json and files of its sizes: what push() would not
/// send again. One question. Throws kRemote.
bool is_there(remote::Session& session, const checkpoint::Manifest& manifest,
              const RemotePath& folder);

/// Throws kIo unless `bytes` more can be written below `folder`, which exists; nothing where the
/// facility does not say.
void require_room(remote::Session& session, const RemotePath& folder, uint64_t bytes);

/// Brings the folder `from` to `to`, which is created. `root_sha256` is what the facility's report
/// promised; the far manifest.json must have it. Each chunk is checked on arrival; no byte beyond
/// the manifest's sizes is accepted, and the manifest's total may not exceed `max_bytes`. A chunk
/// that arrives wrong is fetched again by itself, and once more after another look at the source.
/// Throws kCorrupt (which file and chunk, expected, found) when it stays wrong, kRejected when the
/// far folder is not what was promised, kNotFound, kRemote, kIo (no room here: which folder,
/// needed, free), kCancelled. What arrives takes the memory of `spare`.
Result fetch(const Endpoint& facility, const RemotePath& from, const std::string& root_sha256,
             uint64_t max_bytes, const std::filesystem::path& to, std::stop_token stop,
             const OnProgress& on_progress = {}, SpareMemory* spare = nullptr);

}  // namespace xffl::transfer
