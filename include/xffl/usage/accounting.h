// The rows of the schedulers' accounting for a run's jobs. A user asks for them (`xffl usage
// --accounting`); the run folder keeps the answers.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/history/store.h"
#include "xffl/submit/accounting.h"
#include "xffl/submit/scheduler.h"

namespace xffl::usage {

using Accounting = std::map<FacilityName, std::vector<submit::AccountedStart>>;

/// Each facility's jobs with their names, in the order of the submissions. Pure. Throws kCorrupt as
/// history::decode().
std::map<FacilityName, std::vector<submit::SubmittedJob>> jobs_of(
    const std::vector<history::StoredEvent>& events);

/// JSON with `"schema": 1`.
std::string format_accounting(const Accounting& accounting);
/// The inverse. Throws kCorrupt for any other text; `origin` names it.
Accounting parse_accounting(std::string_view text, std::string_view origin);
/// The kept answers; empty when no user has asked. Throws kCorrupt.
Accounting read_accounting(const std::filesystem::path& path);

}  // namespace xffl::usage
