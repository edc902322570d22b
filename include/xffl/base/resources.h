// The CPUs and the memory that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace xffl {

/// The size of this process's CPU affinity mask, limited by the CPU quota of its control group; at
/// least 1.
int available_cpus();

/// The smallest quota (cgroup v2's cpu.max), in CPUs rounded up, of the control group `group`
/// ("/a/b") and its ancestors below `root`; 0 when no quota is set.
int cpu_quota(const std::filesystem::path& root, const std::string& group);

/// The smaller of the machine's available memory (free or reclaimable) and the memory left in this
/// process's control groups; 0 when both are unknown.
int64_t available_memory();

/// The smallest limit minus usage among the control groups in `groups` (the text of
/// /proc/self/cgroup) and their ancestors below `root`; cgroup v2 (memory.max) and v1
/// (memory.limit_in_bytes). Reclaimable page cache does not count as used. Empty without a limit.
std::optional<int64_t> memory_left_in_groups(const std::filesystem::path& root,
                                             const std::string& groups);

}  // namespace xffl
