#include "xffl/history/run_location.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>

#include "store_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/history/run_history.h"
#include "xffl/history/work_files.h"

namespace xffl::history {
namespace {

namespace fs = std::filesystem;

// An unreadable folder may hold a journal.
bool holds_journal(const fs::path& folder) {
  std::error_code problem;
  return fs::status(folder / "journal.db", problem).type() != fs::file_type::not_found;
}

[[noreturn]] void refuse(const RunLocation& before, const RunLocation& now) {
  throw Error(ErrorKind::kUsage,
              "the run in " + now.folder.string() + " is a copy of the run in " +
                  before.folder.string() + " on " + log::printable(before.host, 256) +
                  ", and both would use the same jobs and folders at the facilities. Continue the "
                  "original, or start another run with `xffl run --new`. If the original is gone "
                  "or never used again, take over the copy with `xffl journal adopt`");
}

// A copy by a program that follows links, such as `scp -r`, has a folder in the place of the link.
void restore_current(const RunFolder& folder, int published) {
  const fs::path current = folder.current();
  if (published == 0 || fs::is_symlink(fs::symlink_status(current))) return;
  fs::remove_all(current);
  fs::create_directory_symlink(folder.round(published).filename() / "global", current);
  fsync_dir(folder.path());
}

}  // namespace

RunLocation location_of(const fs::path& folder) {
  struct statx info {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_INO | STATX_BTIME, &info) != 0)
    throw system_error("stat " + folder.string(), errno);
  RunLocation location;
  location.host = this_host();
  location.folder = fs::canonical(folder);
  location.device = static_cast<int64_t>(makedev(info.stx_dev_major, info.stx_dev_minor));
  location.inode = static_cast<int64_t>(info.stx_ino);
  if ((info.stx_mask & STATX_BTIME) != 0)
    location.born_ns = info.stx_btime.tv_sec * 1'000'000'000 + info.stx_btime.tv_nsec;
  return location;
}

Relocation relocation_of(const RunLocation& before, const RunLocation& now,
                         const std::function<bool(const fs::path&)>& holds_run) {
  const bool same_birth = before.born_ns == now.born_ns || before.born_ns == 0 || now.born_ns == 0;
  if (before.inode == now.inode && same_birth) return Relocation::kThere;
  if (before.host != now.host) return Relocation::kCopied;
  if (before.folder == now.folder) return Relocation::kMoved;
  // A folder keeps its inode in a move within one disk.
  const bool left = before.device != now.device && !holds_run(before.folder);
  return left ? Relocation::kMoved : Relocation::kCopied;
}

void check_location(RunHistory& history, const RunFolder& folder) {
  const std::optional<RunLocation> before = history.state().location;
  const RunLocation now = location_of(folder.path());
  if (before == now) return;
  if (before && relocation_of(*before, now, holds_journal) == Relocation::kCopied)
    refuse(*before, now);
  history.record({}, RunPlaced{now, /*adopted=*/false});
}

bool adopt_run(const RunFolder& folder) {
  RunHistory history(folder.journal());
  take_over_work_files(folder, first_round_in_work(history), history.epoch(),
                       UnfinishedFiles::kLeave);
  const std::optional<RunLocation> before = history.state().location;
  const RunLocation now = location_of(folder.path());
  if (before == now) return false;
  restore_current(folder, history.state().done().rounds_published);
  history.record({}, RunPlaced{now, /*adopted=*/true});
  return true;
}

}  // namespace xffl::history
