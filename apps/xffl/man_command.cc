#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

#include "command_tree.h"
#include "commands.h"
#include "man_pages.h"
#include "xffl/base/embedded_file.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"

namespace xffl {
namespace manual {
std::span<const EmbeddedFile> exit_codes();  // the build embeds docs/reference/exit_codes.md
}

namespace {

void write_man_pages(const CLI::App& app, const std::filesystem::path& folder) {
  make_dirs(folder);
  const auto pages = manual::man_pages(app, manual::exit_codes().front().text);
  for (const auto& [name, text] : pages) write_file_atomic(folder / name, text, 0644);
  std::printf("%zu manual pages in %s\n", pages.size(), log::printable(folder.string()).c_str());
}

}  // namespace

void add_man_command(CLI::App& app) {
  auto folder = std::make_shared<std::filesystem::path>();
  CLI::App* command = app.add_subcommand("man", "write a manual page for each command");
  command->add_option("folder", *folder, "the folder of the pages, such as share/man/man1")
      ->type_name(kFolderType)
      ->required();
  command->callback([&app, folder] { write_man_pages(app, *folder); });
}

}  // namespace xffl
