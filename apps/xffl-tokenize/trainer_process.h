// xffl-train as a child: its lines as they come.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace xffl::app {

/// Runs `argv` (argv[0] by PATH or a path), gives it `input` on stdin, and calls `on_line` with
/// each line of its stdout as soon as it is whole; its stderr is ours. Returns its exit code, 128 +
/// the signal when killed by one. Throws kNotFound when it cannot be started.
int run_lines(const std::vector<std::string>& argv, const std::string& input,
              const std::function<void(std::string_view line)>& on_line);

}  // namespace xffl::app
