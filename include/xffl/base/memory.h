// The memory that this process may still allocate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace xffl {

/// The smaller of the machine's available memory (free or reclaimable) and the memory left in this
/// process's control groups; 0 when both are unknown.
int64_t available_memory();

/// The smallest limit minus usage among the control groups in `groups` (the text of
/// /proc/self/cgroup) and their ancestors below `root`; cgroup v2 (memory.max) and v1
/// (memory.limit_in_bytes). Reclaimable page cache does not count as used. Empty without a limit.
std::optional<int64_t> memory_left_in_groups(const std::filesystem::path& root,
                                             const std::string& groups);

}  // namespace xffl
