// The live view of a run: `xffl status --watch` and `xffl attach`.
#pragma once

#include <chrono>

#include "project.h"
#include "xffl/base/console.h"

namespace xffl {

struct WatchOptions {
  std::chrono::seconds interval{2};  // between two looks at the run
  bool json = false;
  bool ends_with_status = false;  // prints `xffl status` below the last frame
  Colours colours = Colours::kAuto;
};

/// Shows the run until its coordinator ends. On a terminal that moves its cursor, a frame is drawn
/// in place, again after each change of the run and of the window; the last frame stays. Elsewhere
/// the function prints a frame after each change of the run, or a JSON line with `json`.
///
/// Throws the error that the coordinator ended with, and kCancelled on a signal.
void watch_run(const ProjectOptions& options, const WatchOptions& watch);

}  // namespace xffl
