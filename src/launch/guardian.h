// A small child process that outlives a launcher killed with SIGKILL, for long enough to kill the
// process groups that the launcher can no longer end. PR_SET_PDEATHSIG reaches a rank, but not what
// the rank has started.
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

  void watch(int rank, pid_t group) { tell(rank, group); }
  /// The group is over: its number may belong to others from now on.
  void release(int rank) { tell(rank, 0); }

 private:
  void tell(int rank, pid_t group);

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace xffl::launch
