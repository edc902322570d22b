#include "xffl/history/run_location.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/history/run_history.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

// What cannot be looked at may well be there.
bool holds_journal(const fs::path& folder) {
  std::error_code problem;
  return fs::status(folder / "journal.db", problem).type() != fs::file_type::not_found;
}

[[noreturn]] void refuse(const RunLocation& before, const RunLocation& now) {
  throw Error(ErrorKind::kUsage,
              "the run in " + now.folder.string() + " is a copy of the one that was worked on in " +
                  before.folder.string() + " on " + log::printable(before.host, 256) +
                  ", and both would use the same jobs and folders at the facilities. Work on it "
                  "there, or start another run with `xffl run --new`. When that one is gone or "
                  "never used again, `xffl journal adopt` makes this one the run");
}

}  // namespace

RunLocation location_of(const fs::path& folder) {
  struct statx info {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_INO | STATX_BTIME, &info) != 0)
    throw system_error("look at " + folder.string(), errno);
  RunLocation place;
  place.host = this_host();
  place.folder = fs::canonical(folder);
  place.device = static_cast<int64_t>(makedev(info.stx_dev_major, info.stx_dev_minor));
  place.inode = static_cast<int64_t>(info.stx_ino);
  if ((info.stx_mask & STATX_BTIME) != 0)
    place.born_ns = info.stx_btime.tv_sec * 1'000'000'000 + info.stx_btime.tv_nsec;
  return place;
}

Relocation relocation_of(const RunLocation& before, const RunLocation& now,
                         const std::function<bool(const fs::path&)>& holds_run) {
  const bool same_birth = before.born_ns == now.born_ns || before.born_ns == 0 || now.born_ns == 0;
  if (before.inode == now.inode && same_birth) return Relocation::kThere;
  if (before.host != now.host) return Relocation::kCopied;
  if (before.folder == now.folder) return Relocation::kMoved;
  // On one disk a folder that is moved keeps its number.
  const bool left = before.device != now.device && !holds_run(before.folder);
  return left ? Relocation::kMoved : Relocation::kCopied;
}

void check_location(RunHistory& history, const RunFolder& folder) {
  const std::optional<RunLocation> before = history.state().place;
  const RunLocation now = location_of(folder.path());
  if (before == now) return;
  if (before && relocation_of(*before, now, holds_journal) == Relocation::kCopied)
    refuse(*before, now);
  history.record({}, RunPlaced{.location = now, .adopted = false});
}

bool adopt_run(const RunFolder& folder) {
  RunHistory history(folder.journal());
  const std::optional<RunLocation> before = history.state().place;
  const RunLocation now = location_of(folder.path());
  if (before == now) return false;
  history.record({}, RunPlaced{.location = now, .adopted = true});
  return true;
}

}  // namespace xffl::history
