// The weights of a round's updates in the mean. The journal freezes them with the participants.
#pragma once

#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/history/run_history.h"

namespace xffl::facility {

/// Lowers each weight to at most `max_share` of the sum of the returned weights; the others keep
/// their values, so that the excess goes to them in proportion. Repeats that until no weight
/// exceeds the share. Equal weights when so few weights cannot satisfy `max_share`; 0: no limit.
std::vector<double> cap_shares(std::vector<double> weights, double max_share);

/// The weights of all updates of a mean, not normalized.
std::vector<double> weights_of(const std::vector<history::Accepted>& accepted,
                               const config::Aggregation& settings);

}  // namespace xffl::facility
