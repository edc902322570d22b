// xffl cancel, pause and resume: what people ask of a run.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_operate_commands(CLI::App& app);

}  // namespace xffl
