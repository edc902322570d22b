// xffl inspect: what a file or folder is, and what is in it.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_inspect_command(CLI::App& app);

}  // namespace xffl
