// The updates that a round averages. The journal freezes them before the mean is made, so that a
// restart averages the same updates with the same weights.
#pragma once

#include <vector>

#include "xffl/config/experiment.h"
#include "xffl/history/events.h"
#include "xffl/history/run_state.h"

namespace xffl::run {

/// In the mean, not normalized.
double weight_of(const history::Accepted& accepted, config::WeightKind kind);

history::ParticipantsFrozen participants_of(const std::vector<history::Accepted>& accepted,
                                            config::WeightKind weights);

/// The frozen participants' updates among `accepted`, in the frozen order. Throws kCorrupt, naming
/// `round`, when a participant's update or weight is not the one that was frozen.
std::vector<history::Accepted> frozen_participants(int round,
                                                   const std::vector<history::Participant>& frozen,
                                                   const std::vector<history::Accepted>& accepted,
                                                   config::WeightKind weights);

}  // namespace xffl::run
