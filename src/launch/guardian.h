// A child process that kills the ranks' process groups after a SIGKILL of the launcher.
// PR_SET_PDEATHSIG reaches only the rank itself, not its children.
#pragma once

#include <sys/types.h>

#include "xffl/base/file.h"

namespace xffl::launch {

class Guardian {
 public:
  explicit Guardian(int num_ranks);
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(int rank, pid_t group) { send(rank, group); }
  /// The group has ended; the kernel may reuse its number.
  void release(int rank) { send(rank, 0); }

 private:
  void send(int rank, pid_t group);

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace xffl::launch
