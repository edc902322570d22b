// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace xffl {

/// What is free on this machine, or can be freed, and what the control groups of this process leave
/// of it (as batch systems and containers set them), whichever is less; 0 where nothing tells.
int64_t available_memory();

/// What the limits of control groups leave: of those that `groups` names, /proc/self/cgroup's text,
/// and all above them, below `root`; cgroup v2 (memory.max) and v1 (memory.limit_in_bytes). A page
/// cache that can be dropped is not counted as used. Nothing where there is no limit.
std::optional<int64_t> memory_left_in_groups(const std::filesystem::path& root,
                                             const std::string& groups);

}  // namespace xffl
