// Where tests kill the coordinator: XFFL_FAILPOINT=journal:before:N or journal:after:N; and where
// they stop it to do something at that moment: journal:stop:KIND.
#pragma once

#include <string_view>

namespace xffl::history {

enum class FailpointSide { kBefore, kAfter };

/// Kills this process (SIGKILL) when the environment asks for it right before or right after its
/// N-th append became durable; stops it (SIGSTOP) right after every append of `kind`, until a test
/// continues it. `append_index` counts this process's appends from 1.
void failpoint(FailpointSide side, long append_index, std::string_view kind);

/// Counts one more append of this process.
long next_append_index();

}  // namespace xffl::history
