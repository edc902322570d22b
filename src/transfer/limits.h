// Sizes that decide how a file travels, and the names of part files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace xffl::transfer {

inline constexpr size_t kBlockBytes = 4u << 20;
// A file up to this size travels with others in one message of at most kBatchBytes and kBatchFiles.
inline constexpr uint64_t kSmallFileBytes = 4u << 20;
inline constexpr uint64_t kBatchBytes = 12u << 20;
inline constexpr size_t kBatchFiles = 64;
// From this size on, the queries for copies and free space are worth their round trips.
inline constexpr uint64_t kMinQueryBytes = 16u << 20;

/// The name of a part file. A manifest's file names never start with '.', so the two cannot
/// collide.
inline std::string part_name(const std::string& name) { return "." + name + ".part"; }

}  // namespace xffl::transfer
