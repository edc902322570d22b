// xffl plan: what the next round would do, without doing it.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_plan_command(CLI::App& app);

}  // namespace xffl
