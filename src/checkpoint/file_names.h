// Names of files: the alphabet of external names, and the list of a folder.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "xffl/base/error.h"

namespace xffl::checkpoint {

/// True for [A-Za-z0-9._-]{1,200}.
inline bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 200) return false;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) return false;
  }
  return true;
}

/// True for a plain name that is not hidden and neither "." nor "..".
inline bool is_plain_file_name(std::string_view name) {
  return is_plain_name(name) && name.front() != '.';
}

/// The names of the files and subfolders in `folder`. Throws kNotFound, kIo, or kRejected for more
/// than `max_names` names.
inline std::set<std::string> list_folder(const std::filesystem::path& folder, size_t max_names) {
  std::set<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    if (names.size() == max_names) {
      throw Error(ErrorKind::kRejected,
                  folder.string() + ": holds more than " + std::to_string(max_names) + " files");
    }
    names.insert(entry->path().filename().string());
    entry.increment(error);
  }
  if (error) throw system_error("list " + folder.string(), error.value());
  return names;
}

}  // namespace xffl::checkpoint
