// Texts that format_status() and the live view share.
#pragma once

#include <string>

#include "xffl/status/status.h"

namespace xffl::status {

/// The facility's activity from the running coordinator's status file, else its state by the
/// journal.
std::string activity_of(const RunStatus& status, int round, const FacilityName& name,
                        const history::FacilityState& facility);
std::string round_state(const history::RoundState& round, const history::RunState& run);
/// The command that continues a stopped run.
std::string continue_command(const RunStatus& status);

}  // namespace xffl::status
