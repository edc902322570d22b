// The names in a folder.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace xffl::checkpoint {

/// Sorted, sub-folders included; at most `max_names`, else kRejected. Throws kNotFound, kIo.
std::set<std::string> list_folder(const std::filesystem::path& folder, size_t max_names);

}  // namespace xffl::checkpoint
