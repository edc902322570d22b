// Copies the files of a manifest between a facility and this machine.
//
// A transfer resumes within a chunk: the transfer verifies the bytes already present, by blocks of
// 256 KiB in a push, and does not move them again. On return every file has its manifest's size and
// hash and its final name. On error the destination holds finished files and "*.part" files, which
// the next call continues. File names come from a checked manifest, never from a listing of the
// facility. Small files travel together, so that a small model costs few round trips.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "xffl/base/spare_memory.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/remote/session.h"

namespace xffl::transfer {

/// The two sessions of a facility: `control` for small files and queries, `bulk` for large files,
/// through the site's data-transfer host. Both sessions see the same paths; often one session
/// serves as both.
struct Endpoint {
  Endpoint(remote::Session& session) : control(session), bulk(session) {}
  Endpoint(remote::Session& log_in, remote::Session& mover) : control(log_in), bulk(mover) {}

  remote::Session& control;
  remote::Session& bulk;
  // False: the facility hashes nothing. A resumed push then reads back the bytes that are there.
  bool may_hash = true;
  // A push calls it before each change at the facility; an error of it ends the push. May be empty.
  std::function<void()> before_change{};

  remote::Session& control_for_change() const { return after_check(control); }
  remote::Session& bulk_for_change() const { return after_check(bulk); }

 private:
  remote::Session& after_check(remote::Session& session) const {
    if (before_change) before_change();
    return session;
  }
};

struct Progress {
  uint64_t done_bytes = 0;  // moved or already present
  uint64_t total_bytes = 0;
  uint64_t moved_bytes = 0;  // sent or received by this call
};
/// A transfer calls OnProgress from one thread at a time, which may differ from the caller's
/// thread.
using OnProgress = std::function<void(const Progress&)>;

struct Result {
  uint64_t moved_bytes = 0;  // sent or received by this call
};
struct Fetched : Result {
  checkpoint::Manifest manifest;  // of the folder, with block hashes
};

/// The smoothed rate and the remaining time of a transfer, for display. The caller passes the time.
/// Not thread-safe.
class RateMeter {
 public:
  using Time = std::chrono::nanoseconds;  // monotonic, from any fixed start

  /// `fade` is the time constant of the exponential average.
  explicit RateMeter(Time fade = std::chrono::seconds(8)) : fade_(fade) {}

  void add(Time now, const Progress& progress);
  /// Moved bytes per second; 0 before the second add(). Bytes that were already present do not
  /// count.
  double bytes_per_second() const;
  /// Empty while the rate is zero or unknown.
  std::optional<std::chrono::seconds> time_left() const;

 private:
  Time fade_;
  std::optional<Time> last_;
  Progress progress_;
  double seconds_ = 0;  // weighted sums; the rate is their ratio
  double bytes_ = 0;
};

/// Uploads the files of `manifest` from the local folder `from` to `to` at the facility. push()
/// writes manifest.json last, so a folder with manifest.json is complete.
///
/// push() sends no file of a complete folder with the same root hash. push() hard-links a file that
/// a sibling folder of `to` holds with the same hash. In an interrupted file push() skips the
/// chunks and blocks whose hash the facility confirms, or that match when push() reads them back.
/// A push or fetch without a moved byte for the session's time-out throws kRemote. push()
/// verifies the bytes that it sends, a large file by its block hashes; push() first hashes a large
/// file without block hashes in `manifest`. The trainer verifies the hashes at the facility before
/// it uses the files. Throws kRejected when a local file differs
/// from the manifest, kIo when the facility lacks space (folder, needed, free), kRemote,
/// kCancelled.
Result push(const Endpoint& facility, const std::filesystem::path& from,
            const checkpoint::Manifest& manifest, const RemotePath& to, std::stop_token stop,
            const OnProgress& on_progress = {});

/// Repairs a folder at the facility after a job found that its content differs from its
/// manifest.json. The folder counts as incomplete until repair() has compared every chunk of the
/// large files and sent the small files again. repair() removes files that the manifest does not
/// list, and links nothing. After an interruption call repair() again: push() would trust the file
/// names.
Result repair(const Endpoint& facility, const std::filesystem::path& from,
              const checkpoint::Manifest& manifest, const RemotePath& to, std::stop_token stop,
              const OnProgress& on_progress = {});

/// True when the folder holds exactly this manifest.json and files of its sizes, so that push()
/// would send nothing. One query. Throws kRemote.
bool is_pushed(remote::Session& session, const checkpoint::Manifest& manifest,
               const RemotePath& folder);

/// Throws kIo unless the existing `folder` has space for `bytes` more. No effect where the facility
/// does not report its free space.
void require_space(remote::Session& session, const RemotePath& folder, uint64_t bytes);

/// Downloads the folder `from` to the folder `to`, which fetch() creates. The manifest.json at the
/// facility must have the root hash `root_sha256`, which the job's report contains. fetch()
/// verifies each chunk on arrival and accepts no byte beyond the manifest's sizes. The manifest's
/// total may not exceed `max_bytes`. fetch() repeats a wrong chunk alone, up to twice. Throws
/// kCorrupt (file, chunk, expected, found) when the chunk stays wrong, kRejected when the folder at
/// the facility does not match the report, kNotFound, kRemote, kIo (no local space: folder, needed,
/// free), kCancelled. Received blocks use the memory of `spare`.
Fetched fetch(const Endpoint& facility, const RemotePath& from, const std::string& root_sha256,
              uint64_t max_bytes, const std::filesystem::path& to, std::stop_token stop,
              const OnProgress& on_progress = {}, SpareMemory* spare = nullptr);

}  // namespace xffl::transfer
