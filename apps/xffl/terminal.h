// Questions to a person, on the terminal and nowhere else: not on a pipe, not in a detached run.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>

#include "xffl/remote/ssh.h"

namespace xffl {

/// Writes `prompt` to the terminal and reads a line; without `echo` the answer is not shown. Throws
/// kUsage when there is no terminal, or it is closed, kAuth when this process is in its background
/// or nobody answers within `patience` (0: waits), kCancelled on `stop`.
std::string ask_on_terminal(const std::string& prompt, bool echo,
                            std::chrono::seconds patience = std::chrono::seconds(0),
                            std::stop_token stop = {});

/// Whether a person looks at this command: its input and its messages are a terminal's.
bool has_person();

/// Whoever sits at this command's terminal, for what a facility asks at its log-in; nobody (an
/// empty function) in a pipe or a detached run, where `xffl login` helps. Waits less than OpenSSH
/// does.
remote::Ask person_at_terminal(std::stop_token stop = {});

/// Whether ask_on_terminal() can ask.
bool has_terminal();

}  // namespace xffl
