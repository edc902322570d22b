// `xffl run --detach`.
#pragma once

#include "project.h"

namespace xffl {

/// Starts `xffl run` in a session of its own, and returns when that process holds the run or has
/// completed it. Throws the error that the process ended with. `name` is the run that the process
/// continues, or the new run with `fresh`; its output goes to runs/detached-<name>.out.
void run_detached(const ProjectOptions& options, const RunName& name, bool fresh,
                  bool network_allowed);

}  // namespace xffl
