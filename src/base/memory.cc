#include "xffl/base/memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

namespace xffl {
namespace {

namespace fs = std::filesystem;

struct Hierarchy {
  fs::path root;  // the mount point
  const char* limit;
  const char* usage;
  // Keys of memory.stat: file pages, which the kernel reclaims under pressure.
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

std::optional<int64_t> memory_left_in_groups(const fs::path& root, const std::string& groups) {
  std::optional<int64_t> least;
  std::stringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = hierarchy_of(root, line.substr(first + 1, second - first - 1));
    if (!hierarchy) continue;
    for (fs::path at = fs::path("/" + line.substr(second + 1)).lexically_normal();;
         at = at.parent_path()) {
      const auto left = left_in(*hierarchy, hierarchy->root / at.relative_path());
      if (left) least = least ? std::min(*least, *left) : *left;
      if (at == at.parent_path()) break;
    }
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
  const auto left = memory_left_in_groups("/sys/fs/cgroup", text_of("/proc/self/cgroup"));
  if (!left) return bytes;
  return bytes == 0 ? *left : std::min(bytes, *left);
}

}  // namespace xffl
