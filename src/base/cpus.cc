#include "xffl/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace xffl {
namespace {

namespace fs = std::filesystem;

// cgroup v2's line of /proc/self/cgroup: "0::/a/b".
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "/";
}

// cpu.max holds "QUOTA PERIOD" in microseconds, or "max PERIOD".
int quota_of(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::min(1e6, (quota + period - 1) / period)));
}

}  // namespace

int cpu_quota(const fs::path& root, const std::string& group) {
  int smallest = 0;
  for (fs::path at = fs::path("/" + group).lexically_normal();; at = at.parent_path()) {
    const int quota = quota_of(root / at.relative_path());
    if (quota > 0) smallest = smallest == 0 ? quota : std::min(smallest, quota);
    if (at == at.parent_path()) return smallest;
  }
}

int available_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (const int quota = cpu_quota("/sys/fs/cgroup", own_group()); quota > 0)
    cpus = std::min(cpus, quota);
  return std::max(1, cpus);
}

}  // namespace xffl
