// Questions to the user, on the terminal only: not on a pipe, not in a detached run.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>

#include "xffl/remote/ssh.h"

namespace xffl {

/// Writes `prompt` to the terminal and reads a line; without `echo` the terminal does not show the
/// answer. Throws kUsage without a terminal or on a closed terminal, kAuth in a background process
/// or without an answer within `patience` (0: no limit), kCancelled on `stop`.
std::string ask_on_terminal(const std::string& prompt, bool echo,
                            std::chrono::seconds patience = std::chrono::seconds(0),
                            std::stop_token stop = {});

/// Asks `question`, to which only `yes` agrees. Without a terminal at standard input the command
/// itself is the answer. `command` skips the question: `xffl cancel --yes`. Throws kCancelled with
/// `refused` for any other answer, kUsage for none.
void require_yes(const std::string& question, const std::string& command,
                 const std::string& refused);

/// Whether the command is interactive: stdin and stderr are a terminal.
bool is_interactive();

// OpenSSH's server closes the connection after 120 s (LoginGraceTime).
inline constexpr std::chrono::seconds kLoginPatience{110};

/// Answers a facility's questions at log-in on this command's terminal, each within `patience`; an
/// empty function when the command is not interactive.
remote::Ask login_prompt(std::stop_token stop = {}, std::chrono::seconds patience = kLoginPatience);

/// Whether ask_on_terminal() can ask.
bool has_terminal();

}  // namespace xffl
