// The few numbers, beside the buffers, that a training goes on from: they may differ between
// groups.
#pragma once

#include "group_exchange.h"
#include "job_groups.h"
#include "xffl/base/json.h"
#include "xffl/train/trainer.h"

namespace xffl::train {

/// A list for each group: steps of the optimizer, scale of the loss and its good steps, tokens
/// since the last exchange. Collective; the same on all ranks.
Json gather_counts(const JobGroups& groups, at::Device device, Trainer& trainer,
                   const GroupExchange& exchange);

/// Gives this rank's group its own. `steps_since` is that of the last exchange.
void restore_counts(const Json& counts, int64_t steps_since, const JobGroups& groups,
                    Trainer& trainer, GroupExchange& exchange);

}  // namespace xffl::train
