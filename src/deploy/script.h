// Shell scripts at a facility, and their failures.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/remote/session.h"

namespace xffl::deploy {

inline constexpr std::chrono::minutes kShortScript{1}, kLongScript{30};

struct Answer {
  int exit_code = 0;
  std::string text;  // both streams, for messages
};

inline Answer run_script(remote::Session& session, const char* text,
                         const std::vector<std::string>& arguments, std::chrono::minutes patience,
                         const std::stop_token& stop) {
  std::vector<std::string> argv = {"sh", "-c", text, "sh"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const remote::CommandResult result = session.run(argv, "", patience, stop);
  return {result.exit_code, log::printable(result.out + result.err, 600)};
}

[[noreturn]] inline void fail_script(ErrorKind kind, const std::string& what,
                                     const Answer& answer) {
  throw Error(kind, what + " (exit code " + std::to_string(answer.exit_code) +
                        (answer.text.empty() ? ")" : "): " + answer.text));
}

}  // namespace xffl::deploy
