#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "command_tree.h"
#include "commands.h"
#include "credentials.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/exports/model_card.h"
#include "xffl/exports/model_signature.h"
#include "xffl/exports/prometheus.h"
#include "xffl/exports/ro_crate.h"
#include "xffl/exports/tables.h"
#include "xffl/exports/tensorboard.h"
#include "xffl/history/store.h"
#include "xffl/report/run_story.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  ProjectOptions project;
  fs::path to;  // empty: the default
  exports::ModelCard card;
  fs::path signing_key;  // empty: no signature
};

void export_tensorboard(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const fs::path to = options.to.empty() ? folder.path() / "tb" : options.to;
  const exports::TensorboardFiles written =
      exports::write_tensorboard(story_of(options.project, folder), folder, to);
  std::printf("%s: %d files, %llu bytes appended\n", to.c_str(), written.files,
              static_cast<unsigned long long>(written.appended_bytes));
}

void export_csv(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const fs::path to = options.to.empty() ? folder.path() / "csv" : options.to;
  with_context("while exporting the run's tables", [&] {
    exports::write_tables(exports::make_tables(story_of(options.project, folder)), to);
  });
  std::printf("%s\n", to.c_str());
}

void export_model(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  with_context("while exporting the model", [&] {
    std::optional<exports::SigningKey> key;
    if (!options.signing_key.empty()) key.emplace(options.signing_key);
    exports::export_model(story_of(options.project, folder), folder, options.card, options.to,
                          key ? &*key : nullptr);
  });
  std::printf("%s\n", options.to.c_str());
}

void export_ro_crate(const ExportOptions& options) {
  const history::RunFolder folder = options.project.existing_run();
  const std::string text = exports::format_ro_crate(
      story_of(options.project, folder), {options.card.license, options.card.names_facilities});
  with_context("while exporting the provenance",
               [&] { exports::write_ro_crate(text, options.to); });
  std::printf("%s\n", options.to.c_str());
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
// Both live as long as the command line.
struct Kind {
  ExportOptions* options = nullptr;
  CLI::App* command = nullptr;
  CLI::Option* to = nullptr;
};
Kind add_kind(CLI::App& exports, const std::string& name, const std::string& description,
              const std::string& argument, const std::string& meaning,
              std::function<void(const ExportOptions&)> body) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = exports.add_subcommand(name, description);
  add_project_options(command, options->project);
  CLI::Option* to = command->add_option(argument, options->to, meaning)
                        ->type_name(argument == "file" ? kFileType : kFolderType);
  command->callback([options, body = std::move(body)] { body(*options); });
  return {options.get(), command, to};
}

void add_sharing_flags(const Kind& kind) {
  exports::ModelCard& card = kind.options->card;
  kind.command
      ->add_option("--license", card.license,
                   "the license, such as apache-2.0, llama3.2 or CC-BY-4.0")
      ->required();
  kind.command->add_flag("--name-facilities", card.names_facilities,
                         "name the facilities; else they are numbered");
}

}  // namespace

void add_export_commands(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "write a run's figures in the format of another program");
  command->require_subcommand(1);
  add_kind(*command, "tensorboard",
           "event files of TensorBoard; a later export appends the new rounds", "folder",
           "the folder of the event files (default: runs/0001/tb)", export_tensorboard);
  add_kind(*command, "csv", "rounds.csv, attempts.csv and losses.csv; replaces the files", "folder",
           "the folder of the tables (default: runs/0001/csv)", export_csv);
  add_kind(*command, "prometheus",
           "the present figures for node_exporter's textfile collector; replaces the file", "file",
           "the file, such as /var/lib/node_exporter/xffl.prom", export_prometheus)
      .to->required();
  const Kind model =
      add_kind(*command, "model", "a published model with a model card, as a folder to share",
               "folder", "the new folder", export_model);
  model.to->required();
  add_sharing_flags(model);
  exports::ModelCard& card = model.options->card;
  model.command->add_option("--base-model", card.base_model,
                            "the model that the training began with, such as "
                            "meta-llama/Llama-3.2-1B");
  model.command
      ->add_option("--signing-key", model.options->signing_key,
                   "a private key (PEM, elliptic curve): the folder gets an OpenSSF model "
                   "signature, model.sig")
      ->type_name("FILE");
  model.command->add_option("--round", card.round, "the model's round (default: the newest)")
      ->check(CLI::Range(1, 1000000));
  const Kind crate = add_kind(*command, "ro-crate", "the run's provenance: ro-crate-metadata.json",
                              "folder", "the folder of the file", export_ro_crate);
  crate.to->required();
  add_sharing_flags(crate);
}

}  // namespace xffl
