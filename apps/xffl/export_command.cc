#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/exports/prometheus.h"
#include "xffl/exports/tensorboard.h"
#include "xffl/history/store.h"
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

void export_prometheus(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const config::Experiment experiment = experiment_of(options.project, folder);
  exports::RunFigures figures;
  for (const history::StoredEvent& event : history::read_events(folder.journal()))
    figures.add(history::decode(event));
  const std::string text =
      figures.format({.run = folder.run().str(),
                      .version = XFFL_VERSION,
                      .has_coordinator = !history::lock_holder(folder.journal()).empty(),
                      .rounds_planned = experiment.rounds,
                      .now = SystemClock().utc(),
                      .credentials = ending_credentials(experiment)});
  with_context("while exporting the run's figures",
               [&] { exports::write_prometheus(options.to, text); });
  std::printf("%s\n", options.to.c_str());
}

// Adds `xffl export NAME [TO]`.
CLI::Option* add_kind(CLI::App& exports, const std::string& name, const std::string& description,
                      const std::string& argument, const std::string& meaning,
                      std::function<void(const ExportOptions&)> body) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = exports.add_subcommand(name, description);
  add_project_options(command, options->project);
  CLI::Option* to = command->add_option(argument, options->to, meaning);
  command->callback([options, body = std::move(body)] { body(*options); });
  return to;
}

}  // namespace

void add_export_commands(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "write a run's figures in the format of another program");
  command->require_subcommand(1);
  add_kind(*command, "tensorboard",
           "event files of TensorBoard; a later export appends the new rounds", "folder",
           "the folder of the event files (default: runs/0001/tb)", export_tensorboard);
  add_kind(*command, "prometheus",
           "the present figures for node_exporter's textfile collector; replaces the file", "file",
           "the file, such as /var/lib/node_exporter/xffl.prom", export_prometheus)
      ->required();
}

}  // namespace xffl
