// Whether a folder is on a file system that other machines share.
//
// SQLite's locks and memory maps may mean nothing there, or hold for one machine only: two
// coordinators could write one journal.
#pragma once

#include <filesystem>
#include <string>

namespace xffl::history {

/// The kind of network file system that holds `path` ("nfs4", "lustre"), as this process's table of
/// mounts names it; empty when it is a local or an unknown one. Of a path that does not exist yet,
/// its nearest folder counts. No errors: what cannot be read is unknown.
///
/// Source: proc(5), /proc/pid/mounts; getmntent(3).
std::string network_file_system(const std::filesystem::path& path,
                                const std::filesystem::path& mounts = "/proc/self/mounts");

}  // namespace xffl::history
