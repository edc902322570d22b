// The location of a run's folder distinguishes the run from a copy. A copy has the same secret, and
// so the same jobs and folders at the facilities. docs/decisions/0011-a-copied-run-is-refused.md
// lists all cases, and the cases that xffl cannot tell apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "xffl/history/run_folder.h"

namespace xffl::history {

class RunHistory;

struct RunLocation {
  std::string host;
  std::filesystem::path folder;  // the run's folder, canonical: without symbolic links
  int64_t device = 0;            // the file system's number, which a reboot may change
  int64_t inode = 0;             // the folder's number, which a reboot does not change
  int64_t born_ns = 0;           // the folder's creation; 0: the file system does not record it
  bool operator==(const RunLocation&) const = default;
};

/// The location of `folder` now. Throws kNotFound, kIo.
RunLocation location_of(const std::filesystem::path& folder);

enum class Relocation {
  kThere,  // the same folder, under any name and from any host that shares it
  kMoved,  // to another disk, or restored at the same path
  kCopied,
};
/// The relation of the run at `now` to its last location `before`. `holds_run` returns whether a
/// folder of this host still holds a run.
Relocation relocation_of(const RunLocation& before, const RunLocation& now,
                         const std::function<bool(const std::filesystem::path&)>& holds_run);

/// Throws kUsage when the run in `folder` is a copy of a run elsewhere; records a new location.
void check_location(RunHistory& history, const RunFolder& folder);

/// Takes over a copied run folder: the run continues there from now on. False when `folder` is
/// already the run's location. Throws kBusy when a coordinator holds the run, kIo.
bool adopt_run(const RunFolder& folder);

}  // namespace xffl::history
