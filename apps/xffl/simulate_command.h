// xffl simulate, xffl exec: any program, or one facility's training, as N ranks on this machine.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace xffl {

/// A command line in two: what xffl parses, and what follows the first `--arguments` or `--` of
/// `xffl simulate` and `xffl exec`, which belongs to the program that they start, whatever it looks
/// like. Other commands' lines come back whole.
struct CommandLine {
  std::vector<std::string> own;      // without argv[0]
  std::vector<std::string> program;  // without the separator
};
CommandLine split_command_line(int argc, const char* const* argv);

/// Adds the command `simulate` with its alias `exec`; `program_arguments` is CommandLine::program.
/// Its callback sets `exit_code` to that of the first rank that failed, and throws Error.
void add_simulate_commands(CLI::App& app, int& exit_code,
                           std::vector<std::string> program_arguments = {});

}  // namespace xffl
