// The questions of `xffl config` to a facility, while its questions to the user go on.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "xffl/config/settings.h"
#include "xffl/submit/slurm_site.h"

namespace xffl {

/// Logs in to the facility `name` with the settings so far, and prints and returns the answers of
/// its Slurm. A host without a pinned key is shown to the user first, who has to answer yes; its
/// key is pinned in the project. Throws kAuth (the key or the log-in is refused), kRemote (no
/// answer), kConfig (the settings are not complete).
submit::SlurmSite ask_slurm_of(const std::vector<config::Setting>& settings,
                               const std::filesystem::path& project, const std::string& name);

/// The time as a value of a duration key: whole hours, minutes or seconds.
std::string duration_text(std::chrono::seconds time);

}  // namespace xffl
