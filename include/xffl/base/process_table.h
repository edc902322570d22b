// The processes of this machine, from /proc: process groups, sessions and states.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace xffl {

struct ProcessInfo {
  pid_t pid = 0;
  char state = '?';  // as in /proc/PID/stat: 'R', 'S', 'D', 'T', 'Z', ...
  pid_t group = 0;
  pid_t session = 0;
  uint64_t start_ticks = 0;  // with the pid, it identifies a process even after the pid is reused

  bool alive() const { return state != 'Z' && state != 'X'; }
};

/// Zombies included; empty when the process does not exist.
std::optional<ProcessInfo> process_info(pid_t pid);

/// All processes that this process may see, zombies included. Costs a few milliseconds.
std::vector<ProcessInfo> list_processes();

}  // namespace xffl
