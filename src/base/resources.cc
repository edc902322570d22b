#include "xffl/base/resources.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <thread>

namespace xffl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGroupRoot = "/sys/fs/cgroup";

// Calls `visit` for the folder of `group` ("/a/b") and the folders of its ancestors below `root`.
template <class Visit>
void each_group(const fs::path& root, const std::string& group, Visit visit) {
  for (fs::path at = fs::path("/" + group).lexically_normal();; at = at.parent_path()) {
    visit(root / at.relative_path());
    if (at == at.parent_path()) return;
  }
}

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

struct Hierarchy {
  fs::path root;  // the mount point
  const char* limit;
  const char* usage;
  // The keys of file pages in memory.stat. The kernel reclaims file pages under memory pressure.
  std::array<const char*, 2> reclaimable;
};

std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;  // "max", or no such file
  return number;
}

int64_t number_after(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  int64_t number = 0;
  for (std::string word; file >> word >> number;)
    if (word == key) return number;
  return 0;
}

std::optional<int64_t> left_in(const Hierarchy& hierarchy, const fs::path& group) {
  const std::optional<int64_t> limit = number_in(group / hierarchy.limit);
  if (!limit || *limit == std::numeric_limits<int64_t>::max()) return std::nullopt;
  int64_t used = number_in(group / hierarchy.usage).value_or(0);
  for (const char* key : hierarchy.reclaimable) used -= number_after(group / "memory.stat", key);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, used));
}

// "0::/a/b" is a line of version 2, "7:cpu,memory:/a/b" a line of version 1.
std::optional<Hierarchy> hierarchy_of(const fs::path& root, const std::string& controllers) {
  if (controllers.empty())
    return Hierarchy{root, "memory.max", "memory.current", {"inactive_file", "active_file"}};
  std::stringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');)
    if (name == "memory")
      return Hierarchy{root / "memory",
                       "memory.limit_in_bytes",
                       "memory.usage_in_bytes",
                       {"total_inactive_file", "total_active_file"}};
  return std::nullopt;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int cpu_quota(const fs::path& root, const std::string& group) {
  int smallest = 0;
  each_group(root, group, [&](const fs::path& folder) {
    const int quota = quota_of(folder);
    if (quota > 0) smallest = smallest == 0 ? quota : std::min(smallest, quota);
  });
  return smallest;
}

int available_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (const int quota = cpu_quota(kGroupRoot, own_group()); quota > 0) cpus = std::min(cpus, quota);
  return std::max(1, cpus);
}

std::optional<int64_t> memory_left_in_groups(const fs::path& root, const std::string& groups) {
  std::optional<int64_t> least;
  std::stringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = hierarchy_of(root, line.substr(first + 1, second - first - 1));
    if (!hierarchy) continue;
    each_group(hierarchy->root, line.substr(second + 1), [&](const fs::path& group) {
      const auto left = left_in(*hierarchy, group);
      if (left) least = least ? std::min(*least, *left) : *left;
    });
  }
  return least;
}

int64_t available_memory() {
  int64_t bytes = 0;
  std::ifstream text("/proc/meminfo");
  for (std::string word; text >> word;) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && text >> kilobytes) bytes = kilobytes * 1024;
  }
  const auto left = memory_left_in_groups(kGroupRoot, text_of("/proc/self/cgroup"));
  if (!left) return bytes;
  return bytes == 0 ? *left : std::min(bytes, *left);
}

}  // namespace xffl
