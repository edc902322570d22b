// The path of a folder in one form, whatever form a user typed.
#pragma once

#include <filesystem>

namespace xffl {

/// `path` made absolute and normal, without a separator at its end: "out/" and "out" have the same
/// parent folder and name.
inline std::filesystem::path folder_path(const std::filesystem::path& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return whole.has_filename() || !whole.has_relative_path() ? whole : whole.parent_path();
}

}  // namespace xffl
