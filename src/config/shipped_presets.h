// The files of configs/facilities/, compiled in by cmake/embed_files.cmake.
#pragma once

#include <span>
#include <string_view>

namespace xffl::config {

struct ShippedPreset {
  std::string_view name;
  std::string_view text;
};

/// Sorted by name.
std::span<const ShippedPreset> shipped_presets();

}  // namespace xffl::config
