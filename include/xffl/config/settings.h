// key.path=value pairs, of flags, answers and presets -> xffl.yaml, for `xffl config`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::config {

struct Setting {
  std::string path;   // "facilities.alba.data.train"
  std::string value;  // text as it is, or YAML when it starts with '[', '{' or a quote; empty: {}
};

/// Parses "key.path=value". Throws kUsage for any other text.
Setting parse_setting(std::string_view text);

/// The settings as xffl.yaml, keys in the order of the reference, with a short comment on top. A
/// later setting replaces an earlier setting of the same path. Throws kUsage with the setting when
/// its value is not YAML or its path goes through another setting's value.
std::string format_settings(const std::vector<Setting>& settings);

/// The problems of the settings, without the keys that are still missing; "" for valid settings.
std::string check_settings(const std::vector<Setting>& settings,
                           const std::filesystem::path& project_folder);

// Presets: facts about known supercomputers, as keys of a facility (configs/facilities/).
//
// `xffl config` writes a preset into xffl.yaml, where users see and edit it; a run never depends on
// the presets of a release. No preset was tested on its site; each preset names its sources.

/// The names of all presets, sorted.
std::vector<std::string_view> preset_names();

/// The preset's file, with its comments. Throws kNotFound with the known names.
std::string_view preset_text(std::string_view name);

/// The preset's keys as settings of `facility`.
std::vector<Setting> preset_settings(std::string_view name, std::string_view facility);

}  // namespace xffl::config
