// How many CPUs this process may keep busy.
#pragma once

#include <filesystem>
#include <string>

namespace xffl {

/// The CPUs that this process may run on (its affinity, which batch systems set), or fewer where
/// its control group has a quota (as containers have); at least 1.
int available_cpus();

/// The smallest quota, in CPUs rounded up, of the control group `group` ("/a/b") and those above
/// it, below `root` (cgroup v2's cpu.max); 0 when there is none.
int cpu_quota(const std::filesystem::path& root, const std::string& group);

}  // namespace xffl
