// The rules of `policy.stop_when`, which complete a run before its last round.
#pragma once

#include <optional>

#include "xffl/base/clock.h"
#include "xffl/config/experiment.h"
#include "xffl/history/events.h"
#include "xffl/history/progress.h"

namespace xffl::run {

/// The rounds whose gain `gain_per_node_hour` divides by their node-hours: the loss of one round is
/// too noisy.
inline constexpr size_t kGainRounds = 3;

/// The first rule that holds between two rounds, in the order of its keys. Pure.
std::optional<history::StopRuleMet> met_rule(const config::StopRules& rules,
                                             const history::Progress& progress, Clock::UtcTime now);

}  // namespace xffl::run
