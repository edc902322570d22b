// xffl login: logs in to a facility with a person at the terminal.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

/// `login FACILITY`. Its callback throws Error.
void add_login_command(CLI::App& app);

}  // namespace xffl
