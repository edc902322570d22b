// Lists a folder.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace xffl::checkpoint {

/// The names of the files and subfolders in `folder`. Throws kNotFound, kIo, or kRejected for more
/// than `max_names` names.
std::set<std::string> list_folder(const std::filesystem::path& folder, size_t max_names);

}  // namespace xffl::checkpoint
