// One rank: a child process that leads a process group of its own and ends with this process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "xffl/base/file.h"

namespace xffl::launch {

struct RankProcess {
  pid_t pid = -1;     // also its process group
  UniqueFd out, err;  // read ends, non-blocking; empty when the rank inherits stdout and stderr
};

/// Starts argv with exactly the variables `env` ("NAME=value"). Throws kNotFound or kIo on
/// failure.
RankProcess start_rank(std::vector<std::string> argv, std::vector<std::string> env, bool capture);

/// The path of `program`, found as a shell would with this PATH. Throws kNotFound.
std::string find_program(const std::string& program, const std::string& path);

}  // namespace xffl::launch
