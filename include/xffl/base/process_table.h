// What /proc says about the processes of this machine: who leads a group or session, and whether
// anybody of it is left.
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

  bool alive() const { return state != 'Z' && state != 'X'; }  // zombies have only a status left
};

/// Zombies included; empty when there is no such process.
std::optional<ProcessInfo> process_info(pid_t pid);

/// All processes that this one may see, zombies included. Costs a few milliseconds.
std::vector<ProcessInfo> list_processes();

}  // namespace xffl
