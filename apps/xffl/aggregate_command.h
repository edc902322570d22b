// xffl aggregate: FedAvg of Hugging Face folders on this machine, without a project.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_aggregate_command(CLI::App& app);

}  // namespace xffl
