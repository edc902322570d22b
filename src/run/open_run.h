// Opening a run's folder: the part that run_federation and operate share.
#pragma once

#include "xffl/facility/context.h"
#include "xffl/history/requests.h"

namespace xffl::run {

/// Throws as require_same_training() does. What may change while a run goes on (how facilities are
/// reached, what their jobs ask for, how long is waited) is recorded.
void accept_changes(const config::Experiment& experiment, const history::RunFolder& folder,
                    history::RunHistory& history);

/// Records `run_created` in a new journal, and writes config.resolved.yaml.
void create_run(const config::Experiment& experiment, const history::RunFolder& folder,
                history::RunHistory& history);

/// The plan of the round in progress or next; nothing when all are published.
std::optional<plan::RoundPlan> current_plan(const facility::Context& context);

/// Records what a kPause or kResume asks, once.
void set_paused(facility::Context& context, const history::Request& request);

/// Cancels the jobs of the current round and records run_cancelled.
void cancel_now(facility::Context& context);

}  // namespace xffl::run
