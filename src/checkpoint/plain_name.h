// The alphabet of external names: safe as a file name, in a message and in a log.
#pragma once

#include <string_view>

namespace xffl::checkpoint {

/// [A-Za-z0-9._-]{1,200}.
inline bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 200) return false;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) return false;
  }
  return true;
}

/// A plain name that is not hidden and neither "." nor "..".
inline bool is_plain_file_name(std::string_view name) {
  return is_plain_name(name) && name.front() != '.';
}

}  // namespace xffl::checkpoint
