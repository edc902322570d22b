// xffl status, logs, cancel: what a run is doing, and ending it.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_status_commands(CLI::App& app);

}  // namespace xffl
