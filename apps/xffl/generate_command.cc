#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "commands.h"
#include "xffl/base/error.h"
#include "xffl/base/process.h"

namespace xffl {
namespace {

[[noreturn]] void exec_tokenize(std::vector<std::string> args) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "xffl-tokenize";
  args.insert(args.begin(), {program, "generate"});
  ::execv(program.c_str(), exec_pointers(args).data());
  throw Error(ErrorKind::kNotFound, program + " cannot be started: " + std::strerror(errno) +
                                        " (it is built with XFFL_TOKENIZE=ON)");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "generate", "continue a text with a model: --model DIR --prompt TEXT (runs xffl-train)");
  command->prefix_command();
  command->set_help_flag();
  command->callback([command] { exec_tokenize(command->remaining()); });
}

}  // namespace xffl
