#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "commands.h"
#include "simulate_facility.h"
#include "xffl/base/error.h"
#include "xffl/launch/ranks.h"

namespace xffl {
namespace {

struct SimulateOptions {
  std::string program;
  std::string venv;
  std::string project;
  std::string facility;
  int world_size = 1;
  std::vector<std::string> arguments;
};

bool is_simulate(std::string_view word) { return word == "simulate" || word == "exec"; }

int run_program(SimulateOptions options) {
  if (options.program.empty() && !options.arguments.empty()) {  // xffl exec -- PROGRAM ARGUMENT...
    options.program = options.arguments.front();
    options.arguments.erase(options.arguments.begin());
  }
  if (options.program.empty())
    throw Error(ErrorKind::kUsage,
                "nothing to run: give a program (xffl simulate PROGRAM --world-size N) or a "
                "project (xffl simulate -p PROJECT --world-size N)");
  launch::RankSpec spec;
  if (!options.venv.empty()) spec.env = launch::venv_environment(options.venv);
  spec.argv = launch::program_argv(options.program, spec.env, options.arguments);
  spec.world_size = options.world_size;
  // Into a pipe, Python would hold its lines back until it ends.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) spec.env["PYTHONUNBUFFERED"] = "1";
  return launch::run_ranks(spec, {});
}

int run(const SimulateOptions& options) {
  if (options.project.empty()) {
    if (!options.facility.empty())
      throw Error(ErrorKind::kUsage, "--facility names a facility of a project: give -p PROJECT");
    return run_program(options);
  }
  if (!options.program.empty() || !options.arguments.empty() || !options.venv.empty())
    throw Error(ErrorKind::kUsage,
                "-p PROJECT runs that project's training: it takes no program, --venv or "
                "--arguments");
  return simulate_facility(options.project, options.facility, options.world_size);
}

}  // namespace

CommandLine split_command_line(int argc, const char* const* argv) {
  CommandLine line;
  std::string_view command;
  int i = 1;
  for (; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (is_simulate(command) && (word == "--arguments" || word == "--")) break;
    if (command.empty() && !word.starts_with('-')) command = word;
    line.own.emplace_back(word);
  }
  for (++i; i < argc; ++i) line.program.emplace_back(argv[i]);
  return line;
}

void add_simulate_commands(CLI::App& app, int& exit_code,
                           std::vector<std::string> program_arguments) {
  auto options = std::make_shared<SimulateOptions>();
  options->arguments = std::move(program_arguments);
  CLI::App* command = app.add_subcommand(
      "simulate", "Run a program, or one facility's training, as N ranks on this machine");
  command->alias("exec");
  command->add_option("program", options->program, "A program, or a Python script (*.py)");
  command->add_option("--world-size", options->world_size, "Number of ranks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--venv", options->venv, "Python environment: its folder or bin/activate");
  command->add_option("-p,--project", options->project, "Train as this project's facility does");
  command->add_option("--facility", options->facility, "Which one, when the project has several");
  command->footer(
      "  xffl simulate PROGRAM [--world-size N] [--venv DIR] [--arguments ARGUMENT...]\n"
      "  xffl simulate -p PROJECT [--facility NAME] [--world-size N]\n"
      "  xffl exec [--world-size N] -- PROGRAM [ARGUMENT...]\n\n"
      "--arguments (or --) gives everything after it to the program as it is. Ranks find RANK,\n"
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their\n"
      "environment. When one fails, all end, and its exit code is the command's.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace xffl
