// File names in a packed folder.
#pragma once

#include <string>
#include <string_view>

namespace xffl::pack {

inline constexpr std::string_view kModelManifestName = "packed.json";
inline constexpr std::string_view kPackedEnding = ".xpk";
inline constexpr size_t kMaxNameBytes = 200;  // the limit of a manifest

inline std::string packed_name(const std::string& name) {
  return name + std::string(kPackedEnding);
}

}  // namespace xffl::pack
