// xffl render: the job script that a facility would get, for people to read or to submit by hand.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_render_command(CLI::App& app);

}  // namespace xffl
