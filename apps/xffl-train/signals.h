// Signals of a job, taken by a thread of their own.
#pragma once

#include "xffl/train/run_job.h"

namespace xffl::train_app {

/// Takes SIGTERM, SIGINT and SIGUSR1 in a thread of their own, and blocks them in all others. Call
/// it before the process has other threads: they inherit the blocked signals. Until
/// rank_is_set_up() a signal ends the process.
void take_signals();
void rank_is_set_up();

/// The request of the signals so far.
train::StopRequest requested_stop();

}  // namespace xffl::train_app
