// A job that is a session of processes of this machine, and its id "<pid>.<start ticks>".
//
// The id names the session's leader. The job lives as long as anybody in the session does: ranks
// that outlive a killed script still train. Processes are signalled only after a look that they are
// of this session and not older than its leader, so a reused pid is never hit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"

namespace xffl::submit {

struct ProcessJob {
  pid_t leader = 0;
  uint64_t start_ticks = 0;

  JobId id() const;
  /// True when the leader itself runs, at no cost; false says nothing about the others.
  bool leader_alive() const;
  /// Living processes of the job. Costs a look at all processes of the machine.
  std::vector<pid_t> members() const;
  /// Signals the leader's process group; false, and nothing done, when the leader is gone.
  bool signal_group(int signal_number) const;
  /// Signals every living process of the job.
  void signal_members(int signal_number) const;
};

/// Empty for what is not such an id: a pid below 2, signs, leading zeros, trailing text.
std::optional<ProcessJob> parse_process_job(std::string_view text);

}  // namespace xffl::submit
