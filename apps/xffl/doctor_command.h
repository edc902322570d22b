// xffl doctor: is everything in place, and what to do where it is not.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

void add_doctor_command(CLI::App& app);

}  // namespace xffl
