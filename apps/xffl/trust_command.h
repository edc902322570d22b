// xffl trust: a person compares a facility's host keys with what its site publishes, and pins them.
#pragma once

#include <CLI/CLI.hpp>

namespace xffl {

/// `trust FACILITY [--yes FINGERPRINT]...`. Its callback throws Error.
void add_trust_command(CLI::App& app);

}  // namespace xffl
