// xffl demo: a small federation of two languages on this machine, beside each facility alone.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_demo_command(CLI::App& app);

}  // namespace xffl
