// The listener of a run's progress, for `xffl run`'s display and `xffl simulate`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/history/run_state.h"

namespace xffl::facility {

// Callbacks for the progress of rounds. Any thread may call them, one call at a time.
struct Observer {
  std::function<void(int round, const FacilityName&, const std::string& metrics_line)> on_training;
  std::function<void(int round, const std::vector<history::Accepted>&, double seconds)> on_round;
};

}  // namespace xffl::facility
