// Commands in a login shell, for sites that set up PATH and `module` in the profile only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "xffl/remote/session.h"

namespace xffl::remote {

/// The argument vector that reads the profiles of bash (/etc/profile, then the account's) and then
/// runs `argv`. Output of the profiles is dropped, and they cannot read the command's input.
std::vector<std::string> in_login_shell(const std::vector<std::string>& argv);

/// `session` with each command of run() in a login shell; the other calls are those of `session`.
std::shared_ptr<Session> make_login_shell_session(std::shared_ptr<Session> session);

}  // namespace xffl::remote
