// Runs a shell line as ranks under a launcher of its own, launch_ranks_helper.
#pragma once

#include <string>

#include "xffl/base/process.h"

namespace xffl::launch {

inline ProcessSpec launcher(int world_size, const std::string& shell_line, int grace_ms = 5000,
                            bool prefix = true) {
  return {.argv = {LAUNCH_HELPER, std::to_string(world_size), std::to_string(grace_ms),
                   prefix ? "1" : "0", "sh", "-c", shell_line}};
}

inline ProcessResult launch(int world_size, const std::string& shell_line, int grace_ms = 5000,
                            bool prefix = true) {
  return run_process(launcher(world_size, shell_line, grace_ms, prefix));
}

}  // namespace xffl::launch
