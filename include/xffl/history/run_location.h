// Where a run lies, so that a copy of its folder is not taken for the run: it has the same secret,
// and so the same jobs and folders at the facilities.
// docs/decisions/0011-a-copied-run-is-refused.md says what is told apart, and what cannot be.
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
  std::filesystem::path folder;  // the run's, whole and without links
  int64_t device = 0;            // the file system's number, which may change with a reboot
  int64_t inode = 0;             // the folder's, which does not
  int64_t born_ns = 0;           // when the folder was created; 0: its file system does not say
  bool operator==(const RunLocation&) const = default;
};

/// Where `folder` is now. Throws kNotFound, kIo.
RunLocation location_of(const std::filesystem::path& folder);

enum class Relocation {
  kThere,  // the same folder, by whatever name and from whichever host that shares it
  kMoved,  // to another disk, or restored where it was
  kCopied,
};
/// How the run at `now` came there that was last worked on at `before`. `holds_run` says whether
/// there is still a run in a folder of this host.
Relocation relocation_of(const RunLocation& before, const RunLocation& now,
                         const std::function<bool(const std::filesystem::path&)>& holds_run);

/// Throws kUsage when the run in `folder` is a copy of one that is worked on elsewhere; records
/// where it is now when that is another place than before.
void check_location(RunHistory& history, const RunFolder& folder);

/// Makes the copy of a run in `folder` the run: from now on it is worked on there. False when it
/// was worked on there before. Throws kBusy (a coordinator works on it), kIo.
bool adopt_run(const RunFolder& folder);

}  // namespace xffl::history
