// Opening a run's folder: the part that run_federation and operate share.
#pragma once

#include "context.h"

namespace xffl::round {

/// Throws as require_same_training() does. What may change while a run goes on (how facilities are
/// reached, what their jobs ask for, how long is waited) is recorded.
void accept_changes(const config::Experiment& experiment, const RunFolder& folder, Ledger& ledger);

/// Throws kUsage when the run in `folder` is a copy of one that is worked on elsewhere; records
/// where it is now when that is another place than before.
void check_place(Ledger& ledger, const RunFolder& folder);

/// Records `run_created` in a new journal, and writes config.resolved.yaml.
void create_run(const config::Experiment& experiment, const RunFolder& folder, Ledger& ledger);

/// The plan of the round in progress or next; nothing when all are published.
std::optional<plan::RoundPlan> current_plan(const Context& context);

/// Records what a kPause or kResume asks, once.
void set_paused(Context& context, const Request& request);

/// Cancels the jobs of the current round and records run_cancelled.
void cancel_now(Context& context);

}  // namespace xffl::round
