// The work files of a coordinator: incomplete files and folders, under names with the coordinator's
// epoch, such as "global.e7" for "global" and "job.json.e7.tmp" for "job.json".
//
// A coordinator may be frozen at any instruction, even between check_writer() and the effect, while
// another coordinator takes its run over. Two rules make its late effect harmless:
//
// - A coordinator writes files under names with its own epoch. The rename of a complete work file
//   changes another name, after check_writer(). Two other changes are no renames: retention removes
//   old models and updates under their final names, each after check_writer(), and the server of
//   `xffl login` removes login.sock at its end, after it has compared the socket with its own.
// - A coordinator, or a command that writes to the journal, first moves away the work files of all
//   earlier epochs (take_over_work_files()). A rename whose check succeeded before the take-over
//   then fails, because its source is gone; a check after the take-over fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "xffl/history/run_folder.h"

namespace xffl::history {

/// ".e7"
std::string work_suffix(int64_t epoch);
/// "global.e7" for "global"
std::filesystem::path work_name(const std::filesystem::path& path, int64_t epoch);
/// The epoch in the name of a work file or folder: 7 for "global.e7.tmp-3"; none for other names.
std::optional<int64_t> epoch_of(const std::string& name);

/// Whether no later writer than that of `epoch` has opened the journal. Reads without the lock,
/// also after the store of `epoch` is closed: for threads that act beside the run. False for a
/// journal that is gone. Throws kCorrupt, kUnsupported, kIo.
bool is_newest_epoch(const std::filesystem::path& journal, int64_t epoch);

/// Renames the folder `from`, a work name, to `to`. A folder `to` is exchanged with `from` in one
/// step and then removed under the work name. Durable. Throws kNotFound when `from` is gone, kIo.
///
/// Source: rename(2), RENAME_NOREPLACE and RENAME_EXCHANGE. A file system without the two flags
/// gets a removal and a rename instead.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// The first round whose folders may hold work files: models of the last published round are packed
/// for the next round.
int first_round_in_work(const RunHistory& history);

/// A frozen coordinator may still write to the unfinished files of an update. A coordinator
/// continues with copies of these files; a command leaves the copies to the next coordinator.
enum class UnfinishedFiles { kCopy, kLeave };

/// Takes over the work files of epochs before `epoch` in the run's folder and in the folders of
/// round 0 and of the rounds from `first_round` on: removes them, except for fetched updates, which
/// get a name of `epoch`. A part file that cannot be copied is removed: its fetch begins again.
/// Each process that opens a RunHistory calls it.
void take_over_work_files(const RunFolder& folder, int first_round, int64_t epoch,
                          UnfinishedFiles unfinished = UnfinishedFiles::kCopy);
/// Removes the work files of `epoch` itself: those of a coordinator that has lost its run. Best
/// effort.
void remove_work_files(const RunFolder& folder, int first_round, int64_t epoch);

}  // namespace xffl::history
