// The questions of `xffl config` to a facility, while its questions to the user go on.
#pragma once

#include <chrono>
#include <cstdint>
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

/// The bytes of a model's parameters, gradients and AdamW's moments in a training, over all ranks;
/// with an adapter, of the parameters alone. 0: its folder has no config.json that xffl reads.
int64_t model_state_bytes(const std::filesystem::path& folder, const std::string& precision,
                          bool has_adapter);

/// The value of a checked integer; 0 for other text.
int64_t whole_number(const std::string& text);

/// The time as a value of a duration key: whole hours, minutes or seconds.
std::string duration_text(std::chrono::seconds time);

}  // namespace xffl
