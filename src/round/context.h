// What every step of a run works with.
#pragma once

#include <mutex>

#include "ledger.h"
#include "xffl/config/experiment.h"
#include "xffl/plan/round_plan.h"
#include "xffl/round/federation.h"
#include "xffl/round/live.h"
#include "xffl/round/run_folder.h"
#include "xffl/transfer/checked_files.h"

namespace xffl::round {

struct Context {
  const config::Experiment& experiment;
  const RunFolder& folder;
  World& world;
  const Observer& observer;
  Ledger& ledger;
  LiveBoard& live;
  plan::RunIdentity identity;
  transfer::CheckedFiles checked;  // of the global models
  std::mutex observer_mutex;  // listeners are called one at a time
};

}  // namespace xffl::round
