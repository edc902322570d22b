#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "config_wizard.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/config/settings.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using config::Setting;

struct Flags {
  std::string project = ".";
  std::string file;  // `config validate FILE`
  bool no_input = false;
  bool force = false;
  bool strict = false;
  std::string name, model, rounds;
  std::vector<std::string> facilities, presets, settings;
  std::string preset;  // `config preset NAME`
};

std::vector<Setting> settings_of(const Flags& flags) {
  std::vector<Setting> settings;
  const auto add = [&](const char* path, const std::string& value) {
    if (!value.empty()) settings.push_back({path, value});
  };
  add("project", flags.name);
  add("model", flags.model);
  add("rounds", flags.rounds);
  for (const std::string& name : flags.facilities) {
    FacilityName checked(name);
    settings.push_back({"facilities." + name, ""});
  }
  for (const std::string& text : flags.presets) {
    const size_t equals = std::min(text.find('='), text.size());
    const FacilityName facility(text.substr(0, equals));
    const std::string preset = equals < text.size() ? text.substr(equals + 1) : text;
    for (Setting& setting : config::preset_settings(preset, facility.str()))
      settings.push_back(std::move(setting));
  }
  for (const std::string& text : flags.settings) settings.push_back(config::parse_setting(text));
  return settings;
}

void warn_of_missing(const std::vector<std::string>& missing) {
  for (const std::string& one : missing)
    std::fprintf(stderr, "xffl: warning: %s\n", log::printable(one, 4000).c_str());
}

config::Experiment parse_unwritten(const std::string& text, const fs::path& folder) {
  try {
    return config::parse_experiment(text, "xffl.yaml", folder);
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        std::string("the settings are not a valid xffl.yaml; nothing was written. Problems:\n") +
            error.what());
  }
}

void create(const Flags& flags) {
  const fs::path project = fs::absolute(flags.project).lexically_normal() / "";
  const fs::path folder = project.parent_path(), file = folder / "xffl.yaml";
  if (fs::exists(file) && !flags.force)
    throw Error(ErrorKind::kUsage, file.string() + " exists already: edit it, check it with " +
                                       "'xffl config validate', or replace it with --force");
  std::vector<Setting> settings = settings_of(flags);
  const bool asks = !flags.no_input;
  if (asks && isatty(STDIN_FILENO) == 0)
    throw Error(ErrorKind::kUsage,
                "the questions need a terminal; without one give --no-input with --name, --model, "
                "--rounds, --facility and --set (see 'xffl config --help')");
  ConfigWizard wizard(settings, folder);
  if (asks) wizard.ask_all();
  const std::string text = config::format_settings(settings);
  const config::Experiment experiment = parse_unwritten(text, folder);
  if (asks) {
    std::printf("\n%s\n", text.c_str());
    if (!wizard.confirm("Write it to " + file.string() + "?"))
      throw Error(ErrorKind::kCancelled, "nothing was written");
  }
  make_dirs(folder);
  write_file_atomic(file, text);
  warn_of_missing(find_missing(experiment));
  std::string next;
  for (const config::Facility& facility : experiment.facilities)
    if (facility.access == config::AccessKind::kSsh)
      next += "xffl trust " + facility.name.str() + " -p " + flags.project + ", ";
  next += "xffl doctor -p " + flags.project + ", xffl run -p " + flags.project;
  std::printf("wrote %s; next: %s\n", log::printable(file.string()).c_str(),
              log::printable(next).c_str());
}

// Prints each problem as a line "file:line:column: ..." on stderr, a format that editors parse.
void validate(const Flags& flags) {
  const fs::path path = flags.file.empty() ? flags.project : flags.file;
  const bool is_folder = flags.file.empty() || fs::is_directory(path);
  const fs::path file = is_folder ? path / "xffl.yaml" : path;
  config::Experiment experiment;
  try {
    if (is_folder) {
      experiment = config::load_experiment(path);
    } else {
      experiment = config::parse_experiment(read_file(path, 2u << 20), path,
                                            fs::absolute(path).parent_path());
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) throw;
    const std::string problems = error.what();
    const auto count = std::count(problems.begin(), problems.end(), '\n') + 1;
    std::fprintf(stderr, "%s\n", problems.c_str());
    throw Error(ErrorKind::kConfig, file.string() + " has " + std::to_string(count) +
                                        (count == 1 ? " problem" : " problems"));
  }
  const std::vector<std::string> missing = find_missing(experiment);
  warn_of_missing(missing);
  if (flags.strict && !missing.empty())
    throw Error(ErrorKind::kNotFound, file.string() + " is well-formed, but " +
                                          std::to_string(missing.size()) +
                                          " of its files and folders do not exist");
  std::printf("%s: valid: project '%s', %d rounds, %zu facilities%s\n",
              log::printable(file.string()).c_str(), experiment.project.str().c_str(),
              experiment.rounds, experiment.facilities.size(),
              missing.empty() ? "" : "; some of its files do not exist yet");
}

void show_preset(const std::string& name) {
  if (!name.empty()) {
    std::fputs(std::string(config::preset_text(name)).c_str(), stdout);
    return;
  }
  for (const std::string_view each : config::preset_names())
    std::printf("%s\n", std::string(each).c_str());
}

void add_create_flags(CLI::App& command, Flags& flags) {
  command.add_flag("--no-input", flags.no_input,
                   "ask no questions: take all settings from the flags");
  command.add_flag("--force", flags.force, "replace an existing xffl.yaml");
  command.add_option("--name", flags.name, "the project's name");
  command.add_option(
      "--model", flags.model,
      "Hugging Face folder that round 1 starts from; relative to the project's folder");
  command.add_option("--rounds", flags.rounds, "rounds of training and averaging");
  command.add_option("--facility", flags.facilities, "a facility's name; may be repeated")
      ->allow_extra_args(false);
  command
      .add_option("--preset", flags.presets,
                  "FACILITY=NAME: a facility with the keys of a known supercomputer (see `xffl "
                  "config preset`); may be repeated")
      ->allow_extra_args(false);
  command
      .add_option(
          "--set", flags.settings,
          "key.path=value, such as facilities.alba.data.train=/data/it.tokens; may be repeated")
      ->allow_extra_args(false);
}

}  // namespace

void add_config_commands(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "config",
      "write a project's xffl.yaml from answers on the terminal, or from flags (--no-input)");
  const auto add_project = [&](CLI::App* to) {
    return to->add_option("-p,--project", flags->project, "the project's folder (default: .)");
  };
  add_project(command);
  add_create_flags(*command, *flags);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) create(*flags);
  });

  CLI::App* check = command->add_subcommand("validate", "list all problems, with file:line:column");
  CLI::Option* project = add_project(check);
  check->add_option("file", flags->file, "a file or project folder")->excludes(project);
  check->add_flag("--strict", flags->strict, "treat missing files as errors, too");
  check->callback([flags] { validate(*flags); });

  command->add_subcommand("schema", "print the JSON Schema of xffl.yaml")->callback([] {
    std::fputs(config::json_schema().c_str(), stdout);
  });

  command
      ->add_subcommand("keys", "print every key with its range, default and meaning, as Markdown")
      ->callback([] { std::fputs(config::key_reference().c_str(), stdout); });

  CLI::App* preset = command->add_subcommand(
      "preset", "list the known supercomputers, or print the keys and sources of one");
  preset->add_option("name", flags->preset, "a name of the list");
  preset->callback([flags] { show_preset(flags->preset); });

  CLI::App* show =
      command->add_subcommand("show", "print the experiment with every default filled in");
  add_project(show);
  show->callback([flags] {
    std::fputs(format_experiment(config::load_experiment(flags->project)).c_str(), stdout);
  });
}

}  // namespace xffl
