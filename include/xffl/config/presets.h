// Facts about known supercomputers, as keys of a facility: configs/facilities/.
//
// A preset is written into xffl.yaml, where it is seen and edited; a run never depends on what a
// release ships. None was tested on its site: each names its sources.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "xffl/config/settings.h"

namespace xffl::config {

/// Sorted.
std::vector<std::string_view> preset_names();

/// The file, with its comments. Throws kNotFound naming the known ones.
std::string_view preset_text(std::string_view name);

/// Its keys as settings of `facility`.
std::vector<Setting> preset_settings(std::string_view name, std::string_view facility);

}  // namespace xffl::config
