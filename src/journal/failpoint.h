// Where tests kill the coordinator: XFFL_FAILPOINT=journal:before:N or journal:after:N.
#pragma once

namespace xffl::journal {

enum class FailpointSide { kBefore, kAfter };

/// Kills this process (SIGKILL) when the environment asks for it right before or right after its
/// N-th append became durable. `append_index` counts this process's appends from 1.
void failpoint(FailpointSide side, long append_index);

/// Counts one more append of this process.
long next_append_index();

}  // namespace xffl::journal
