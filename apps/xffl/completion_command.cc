#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "commands.h"
#include "xffl/base/embedded_file.h"

namespace xffl {
namespace completion {
std::span<const EmbeddedFile> completion_scripts();  // the build embeds the folder completion
}

namespace {

void print_completion_script(const std::string& shell) {
  for (const EmbeddedFile& script : completion::completion_scripts())
    if (script.name == "xffl." + shell)
      std::fwrite(script.text.data(), 1, script.text.size(), stdout);
}

}  // namespace

void add_completion_command(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "print the completion script of a shell");
  command->add_option("shell", *shell, "the shell")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->required();
  command->footer(
      "bash: source <(xffl completion bash)\n"
      "zsh:  source <(xffl completion zsh)\n"
      "fish: xffl completion fish | source");
  command->callback([shell] { print_completion_script(*shell); });
}

}  // namespace xffl
