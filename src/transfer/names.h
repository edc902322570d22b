// What a transfer's two ends call things while it is under way, and what counts as small.
//
// A manifest's names never start with '.', so a part file cannot be mistaken for one of its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace xffl::transfer {

inline constexpr size_t kBlockBytes = 4u << 20;
// Up to this size a file travels with others in one message, of at most kBatchBytes and
// kBatchFiles.
inline constexpr uint64_t kSmallFileBytes = 4u << 20;
inline constexpr uint64_t kBatchBytes = 12u << 20;
inline constexpr size_t kBatchFiles = 64;
// From this much on, questions that save bytes or fail early are worth their round trips.
inline constexpr uint64_t kWorthAskingBytes = 16u << 20;

inline std::string part_name(const std::string& name) { return "." + name + ".part"; }

}  // namespace xffl::transfer
