// What a transfer's two ends call things while it is under way.
//
// A manifest's names never start with '.', so a part file cannot be mistaken for one of its files.
#pragma once

#include <cstddef>
#include <string>

namespace xffl::transfer {

inline constexpr size_t kBlockBytes = 4u << 20;

inline std::string part_name(const std::string& name) { return "." + name + ".part"; }

}  // namespace xffl::transfer
