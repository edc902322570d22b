#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "project.h"
#include "xffl/usage/format.h"

namespace xffl {
namespace {

struct UsageOptions {
  ProjectOptions project;
  bool json = false, csv = false;
};

void print_usage(const UsageOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const usage::Ledger ledger =
      usage::make_ledger(history::read_events(folder.journal()),
                         usage::gpus_per_node(experiment_of(options.project, folder)));
  const std::string text = options.json  ? usage::format_json(ledger, folder.run().str())
                           : options.csv ? usage::format_csv(ledger)
                                         : usage::format_text(ledger);
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_usage_command(CLI::App& app) {
  auto options = std::make_shared<UsageOptions>();
  CLI::App* command = app.add_subcommand(
      "usage", "show the node-hours of a run by facility: used, lost, idle, evaluation");
  add_project_options(command, options->project);
  CLI::Option* json = command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--csv", options->csv, "print one line for each start of a job")
      ->excludes(json);
  command->callback([options] { print_usage(*options); });
}

}  // namespace xffl
