// The processes of a launch. A rank leads a process group of its own and ends with the launcher;
// the guardian ends the process groups.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::launch {

struct RankProcess {
  pid_t pid = -1;     // also the number of the rank's process group
  UniqueFd out, err;  // read ends, non-blocking; empty when the rank inherits stdout and stderr
};

/// Starts argv with exactly the variables `env` ("NAME=value"). Throws kNotFound or kIo on
/// failure.
RankProcess start_rank(std::vector<std::string> argv, std::vector<std::string> env, bool capture);

/// The path of `program`, searched as a shell searches with this PATH. Throws kNotFound.
std::string find_program(const std::string& program, const std::string& path);

/// A child process that kills the ranks' process groups after a SIGKILL of the launcher.
/// PR_SET_PDEATHSIG reaches only the rank itself, not its children.
class Guardian {
 public:
  explicit Guardian(int num_ranks);
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(int rank, pid_t group) { send(rank, group); }
  /// Records that a rank's group has ended: the kernel may reuse its number.
  void release(int rank) { send(rank, 0); }

 private:
  void send(int rank, pid_t group);

  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace xffl::launch
