// The number of CPUs that this process may keep busy.
#pragma once

#include <filesystem>
#include <string>

namespace xffl {

/// The size of this process's CPU affinity mask, limited by the CPU quota of its control group; at
/// least 1.
int available_cpus();

/// The smallest quota (cgroup v2's cpu.max), in CPUs rounded up, of the control group `group`
/// ("/a/b") and its ancestors below `root`; 0 when no quota is set.
int cpu_quota(const std::filesystem::path& root, const std::string& group);

}  // namespace xffl
