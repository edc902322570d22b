#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/exports/tensorboard.h"
#include "xffl/report/run_story.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  ProjectOptions project;
  fs::path to;  // empty: the default
};

report::RunStory story_of(const ExportOptions& options, const history::RunFolder& folder) {
  const config::Experiment experiment = experiment_of(options.project, folder);
  report::StoryContext context;
  context.version = XFFL_VERSION;
  context.rounds_planned = experiment.rounds;
  context.now = SystemClock().utc();
  context.credentials = ending_credentials(experiment);
  return report::collect_story(folder, context);
}

void export_tensorboard(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const fs::path to = options.to.empty() ? folder.path() / "tb" : options.to;
  const exports::TensorboardFiles written =
      exports::write_tensorboard(story_of(options, folder), folder, to);
  std::printf("%s: %d files, %llu bytes appended\n", to.c_str(), written.files,
              static_cast<unsigned long long>(written.appended_bytes));
}

// Adds `xffl export NAME [TO]`.
CLI::App* add_kind(CLI::App& exports, const std::string& name, const std::string& description,
                   const std::string& argument, const std::string& meaning,
                   std::function<void(const ExportOptions&)> body) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = exports.add_subcommand(name, description);
  add_project_options(command, options->project);
  command->add_option(argument, options->to, meaning);
  command->callback([options, body = std::move(body)] { body(*options); });
  return command;
}

}  // namespace

void add_export_commands(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "write a run's figures in the format of another program");
  command->require_subcommand(1);
  add_kind(*command, "tensorboard",
           "event files of TensorBoard; a later export appends the new rounds", "folder",
           "the folder of the event files (default: runs/0001/tb)", export_tensorboard);
}

}  // namespace xffl
