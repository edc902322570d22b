// A copy of a file that a power loss does not take.
#pragma once

#include <filesystem>

namespace xffl {

/// Copies `from` to the new file `to` and syncs its bytes: without, a power loss could leave a file
/// of the right name and size that lacks bytes. The caller makes the name durable. Throws kIo,
/// also for an existing `to`.
void copy_synced(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace xffl
