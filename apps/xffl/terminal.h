// Questions to a person, on the terminal and nowhere else: not on a pipe, not in a detached run.
#pragma once

#include <string>

namespace xffl {

/// Writes `prompt` to the terminal and reads a line; without `echo` the answer is not shown. Throws
/// kUsage when there is no terminal, or it is closed.
std::string ask_on_terminal(const std::string& prompt, bool echo);

/// Whether ask_on_terminal() can ask.
bool has_terminal();

}  // namespace xffl
