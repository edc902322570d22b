// key.path=value pairs -> xffl.yaml: what `xffl config` writes from flags and answers.
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

/// "key.path=value". Throws kUsage when it is not that.
Setting parse_setting(std::string_view text);

/// The settings as xffl.yaml, keys in the order of the reference, with a short comment on top; a
/// later setting replaces an earlier one of the same path. Throws kUsage with the setting when its
/// value is not YAML or its path goes through another setting's value.
std::string format_settings(const std::vector<Setting>& settings);

/// What is wrong with the settings, without the keys that are still missing; "" when nothing is.
std::string check_settings(const std::vector<Setting>& settings,
                           const std::filesystem::path& project_folder);

}  // namespace xffl::config
