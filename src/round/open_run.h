// Opening a run's folder: the part that run_federation and cancel_run share.
#pragma once

#include "context.h"

namespace xffl::round {

/// Throws kConfig, with the lines that differ, unless the run in `folder` was created with exactly
/// `experiment`.
void check_same_experiment(const config::Experiment& experiment, const RunFolder& folder,
                           const History& history);

/// Records `run_created` in a new journal, and writes config.resolved.yaml.
void create_run(const config::Experiment& experiment, const RunFolder& folder, Ledger& ledger);

/// The plan of the round in progress or next; nothing when all are published.
std::optional<plan::RoundPlan> current_plan(const Context& context);

/// Cancels the jobs of the current round and records run_cancelled.
void cancel_now(Context& context);

}  // namespace xffl::round
