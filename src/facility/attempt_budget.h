// How many attempts a facility has in a round.
#pragma once

#include <optional>
#include <string>

#include "xffl/facility/machine.h"

namespace xffl::facility {

/// Why there is no further attempt; empty: there is one. Those before the last `xffl run` do not
/// count, nor do those that a training went on from.
std::optional<std::string> spent_budget(const Rules& rules, const history::FacilityState& known);

}  // namespace xffl::facility
