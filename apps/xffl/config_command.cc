#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_tree.h"
#include "commands.h"
#include "config_questions.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "xffl/config/settings.h"
#include "xffl/submit/slurm_site.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using config::Setting;

/// Reads one line of stdin and trims blanks. Throws kCancelled at the end of the input.
std::string line(const std::string& prompt) {
  std::printf("%s", prompt.c_str());
  std::fflush(stdout);
  std::string text;
  if (!std::getline(std::cin, text))
    throw Error(ErrorKind::kCancelled, "the input ended; nothing was written");
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" ,", begin), text.size());
    if (end > begin) all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

// The problems in terms of the answer: the user typed no quotes.
std::string problems_of_answer(std::string problems) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at; (at = problems.find(from)) != std::string::npos;)
      problems.replace(at, from.size(), to);
  };
  replace("found the quoted text", "found");
  replace(": write it without quotes", "");
  replace("found a mapping", "found nothing");
  return problems;
}

std::string known_sites() {
  std::string names;
  for (const std::string_view name : config::preset_names())
    names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

bool is_known_site(const std::string& name) {
  const auto names = config::preset_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Asks on stdout for each setting that `settings` lacks, reads stdin and adds the answers. Repeats
/// a question until its answer is valid. Throws kCancelled at the end of the input.
class ConfigWizard {
 public:
  /// `settings` outlives the wizard. Relative paths of this machine start at `project`.
  ConfigWizard(std::vector<Setting>& settings, fs::path project)
      : settings_(settings), project_(std::move(project)) {}

  void ask_all();
  /// True for Enter, "y" or "yes".
  bool confirm(const std::string& question);

 private:
  using Read = std::function<std::vector<Setting>(const std::string&)>;

  bool has(const std::string& path) const;
  std::string value(const std::string& path) const;
  bool accept(const std::vector<Setting>& added);
  void ask_until(const std::string& question, const std::string& default_answer, const Read& read);
  void ask(const std::string& path, const std::string& question, const std::string& default_answer);
  void ask_list(const std::string& path, const std::string& question,
                const std::string& default_answer);
  void ask_optional(const std::string& path, const std::string& question);
  std::vector<std::string> ask_facilities();
  void ask_facility(const std::string& name);
  void ask_access(const std::string& name);
  void ask_site(const std::string& name);
  std::optional<submit::SlurmSite> ask_slurm(const std::string& name);
  void ask_allocation(const std::string& path, const submit::SlurmSite& site);
  submit::NodeProposal propose_nodes(const std::string& path,
                                     const submit::SlurmPartition* partition,
                                     const submit::SlurmQos* qos) const;
  void ask_trainer(const std::string& path);
  bool ask_text(const std::string& path);
  void ask_data(const std::string& path, const std::string& default_answer);

  std::vector<Setting>& settings_;
  fs::path project_;
};

// The value of a setting for words separated by blanks.
std::string setting_list(const std::string& answer) {
  const std::vector<std::string> items = split_list(answer);
  if (items.size() <= 1) return items.empty() ? "" : items.front();
  std::string list;
  for (const std::string& item : items) list += (list.empty() ? "[\"" : ", \"") + item + "\"";
  return list + "]";
}

void ConfigWizard::ask_all() {
  std::printf("An xffl project in %s. Enter takes the [default].\n",
              log::printable(project_.string()).c_str());
  const std::string folder = project_.filename().string();
  ask("project", "Project name (a-z, 0-9, '_', '-')", folder.empty() ? "federation" : folder);
  ask("model", "Model: Hugging Face folder that round 1 starts from", "models/small");
  ask("rounds", "Rounds", "3");
  ask("training.steps_per_round", "Steps of a facility in one round", "100");
  ask("training.batch_size", "Batch size: sequences per step, over all ranks", "8");
  ask("training.learning_rate", "Learning rate", "1e-5");
  ask("training.precision", "Precision (fp32, bf16 or fp16)", "fp32");
  for (const std::string& facility : ask_facilities()) ask_facility(facility);
}

bool ConfigWizard::confirm(const std::string& question) {
  const std::string answer = line(question + " [Y/n] ");
  return answer.empty() || answer == "y" || answer == "Y" || answer == "yes";
}

bool ConfigWizard::has(const std::string& path) const {
  return std::any_of(settings_.begin(), settings_.end(), [&](const Setting& setting) {
    return setting.path == path || setting.path.starts_with(path + ".");
  });
}

std::string ConfigWizard::value(const std::string& path) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const Setting& setting) { return setting.path == path; });
  return found == settings_.end() ? "" : found->value;
}

/// Adds the settings, or prints their problems.
bool ConfigWizard::accept(const std::vector<Setting>& added) {
  std::vector<Setting> all = settings_;
  all.insert(all.end(), added.begin(), added.end());
  const std::string problems = problems_of_answer(check_settings(all, project_));
  if (problems.empty()) settings_ = std::move(all);
  if (!problems.empty()) std::printf("  %s\n", problems.c_str());
  return problems.empty();
}

/// Asks until `read` turns the answer into valid settings.
void ConfigWizard::ask_until(const std::string& question, const std::string& default_answer,
                             const Read& read) {
  for (;;) {
    std::string answer =
        line(question + (default_answer.empty() ? ": " : " [" + default_answer + "]: "));
    if (answer.empty()) answer = default_answer;
    if (accept(read(answer))) return;
  }
}

void ConfigWizard::ask(const std::string& path, const std::string& question,
                       const std::string& default_answer) {
  if (has(path)) return;
  ask_until(question, default_answer, [&](const std::string& answer) {
    return std::vector<Setting>{{path, answer}};
  });
}

void ConfigWizard::ask_list(const std::string& path, const std::string& question,
                            const std::string& default_answer) {
  if (has(path)) return;
  ask_until(question, default_answer, [&](const std::string& answer) {
    return std::vector<Setting>{{path, setting_list(answer)}};
  });
}

void ConfigWizard::ask_optional(const std::string& path, const std::string& question) {
  if (has(path)) return;
  ask_until(question, "", [&](const std::string& answer) {
    return answer.empty() ? std::vector<Setting>{} : std::vector<Setting>{{path, answer}};
  });
}

std::vector<std::string> ConfigWizard::ask_facilities() {
  if (!has("facilities"))
    ask_until("Facilities, separated by blanks", "alba brno", [](const std::string& answer) {
      std::vector<Setting> added;
      for (const std::string& name : split_list(answer))
        added.push_back({"facilities." + name, ""});
      return added;
    });
  std::vector<std::string> names;
  for (const Setting& setting : settings_) {
    if (!setting.path.starts_with("facilities.")) continue;
    const std::string name = split_list(setting.path.substr(11)).front();
    const std::string first = name.substr(0, name.find('.'));
    if (std::find(names.begin(), names.end(), first) == names.end()) names.push_back(first);
  }
  return names;
}

void ConfigWizard::ask_facility(const std::string& name) {
  std::printf("Facility %s\n", name.c_str());
  const std::string path = "facilities." + name + ".";
  ask_access(name);
  if (value(path + "access") == "ssh") {
    ask_site(name);
    if (!ask_text(path)) ask_data(path, "");
  } else {
    ask(path + "workdir", "  Folder for xffl's files there", "work/" + name);
    ask(path + "world_size", "  Ranks of a job", "1");
    ask_data(path, "data/" + name + ".tokens");
  }
}

void ConfigWizard::ask_access(const std::string& name) {
  const std::string path = "facilities." + name + ".access";
  if (has(path)) return;
  ask_until("  Access: local (this machine), ssh (a cluster with Slurm), or a known site (" +
                known_sites() + ")",
            "local", [&](const std::string& answer) -> std::vector<Setting> {
              if (is_known_site(answer)) return config::preset_settings(answer, name);
              if (answer != "ssh") return {{path, answer}};
              return {{path, answer}, {"facilities." + name + ".scheduler", "slurm"}};
            });
}

/// Asks for the settings that a cluster behind SSH needs first. The cluster's Slurm proposes the
/// answers, if it can be asked.
void ConfigWizard::ask_site(const std::string& name) {
  const std::string path = "facilities." + name + ".";
  ask_list(path + "ssh.hosts", "  Its login nodes, separated by blanks", "");
  ask(path + "ssh.user", "  Your account's name there", "");
  ask_optional(
      path + "ssh.keys",
      "  Your private key, an absolute path on this machine (Enter: the agent, then ~/.ssh/id_*)");
  ask_allocation(path, ask_slurm(name).value_or(submit::SlurmSite{}));
  ask(path + "workdir", "  Folder there for xffl's files, shared by all nodes", "");
  ask_trainer(path);
}

/// Logs in and asks Slurm. None without a log-in: the wizard then goes on without proposals.
std::optional<submit::SlurmSite> ConfigWizard::ask_slurm(const std::string& name) {
  if (value("facilities." + name + ".scheduler") != "slurm" ||
      !confirm("  Log in now, to ask Slurm for accounts, partitions and limits?"))
    return std::nullopt;
  try {
    return ask_slurm_of(settings_, project_, name);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    std::printf("  Not asked: %s\n", log::printable(error.what(), 1000).c_str());
    return std::nullopt;
  }
}

std::string words_of(const std::vector<std::string>& names) {
  std::string words;
  for (const std::string& name : names) words += (words.empty() ? "" : ", ") + name;
  return words;
}

void ConfigWizard::ask_allocation(const std::string& path, const submit::SlurmSite& site) {
  if (site.accounts.empty())
    ask_optional(path + "slurm.account", "  Slurm account to charge (Enter: your default one)");
  else
    ask(path + "slurm.account", "  Slurm account to charge (" + words_of(site.accounts) + ")",
        site.accounts.front());
  if (const submit::SlurmPartition* proposed = site.proposed())
    ask(path + "slurm.partition", "  Partition", proposed->name);
  else
    ask_optional(path + "slurm.partition", "  Partition (Enter: the default one)");
  if (site.qos.size() > 1) ask_optional(path + "slurm.qos", "  QOS (Enter: your default one)");
  const submit::SlurmPartition* partition = site.partition(value(path + "slurm.partition"));
  const submit::SlurmQos* qos = site.find_qos(value(path + "slurm.qos"));
  const std::chrono::seconds time =
      partition == nullptr ? std::chrono::hours(1) : proposed_walltime(partition, qos);
  const submit::NodeProposal nodes = propose_nodes(path, partition, qos);
  ask(path + "slurm.nodes",
      "  Nodes of a job" + (partition == nullptr ? "" : ", of " + std::to_string(partition->nodes)),
      std::to_string(nodes.nodes));
  ask(path + "slurm.gpus_per_node", "  GPUs of a node, one rank each; 0: none",
      std::to_string(partition == nullptr ? 0 : partition->gpus_per_node));
  if (nodes.sharded && !has("training.sharding"))
    ask(path + "training.sharding", "  Sharding of the model over the ranks", "full");
  ask(path + "slurm.time", "  Walltime of a job", duration_text(time));
}

/// Prints the reason of the proposal.
submit::NodeProposal ConfigWizard::propose_nodes(const std::string& path,
                                                 const submit::SlurmPartition* partition,
                                                 const submit::SlurmQos* qos) const {
  if (partition == nullptr || has(path + "slurm.nodes")) return {};
  const bool has_adapter =
      !value("training.lora.rank").empty() && value("training.lora.rank") != "0";
  const int64_t state =
      model_state_bytes(project_ / value("model"), value("training.precision"), has_adapter);
  const std::string own = value(path + "training.batch_size");
  const submit::NodeProposal proposal = submit::proposed_nodes(
      *partition, qos, state, whole_number(own.empty() ? value("training.batch_size") : own));
  std::printf("  Proposal: %s\n", proposal.reason.c_str());
  return proposal;
}

void ConfigWizard::ask_trainer(const std::string& path) {
  if (has(path + "trainer") || has(path + "image")) return;
  ask_until(
      "  xffl-train there: bundle (`xffl deploy` puts it there), path (in the PATH of jobs), "
      "or its absolute path",
      "bundle", [&](const std::string& answer) -> std::vector<Setting> {
        if (answer == "path") return {{path + "trainer", "builtin"}};
        if (answer == "bundle") return {{path + "trainer", answer}};
        return {{path + "trainer.program", answer}};
      });
}

/// True when the answer names text, which `xffl prepare` tokenizes at the facility.
bool ConfigWizard::ask_text(const std::string& path) {
  if (has(path + "data.train")) return false;
  if (!has(path + "data.text"))
    ask_until(
        "  Text there, paths and patterns such as /data/it/*.jsonl, separated by blanks "
        "(Enter: there are token shards)",
        "", [&](const std::string& answer) -> std::vector<Setting> {
          if (split_list(answer).empty()) return {};
          return {{path + "data.text", setting_list(answer)}};
        });
  if (!has(path + "data.text")) return false;
  ask_optional(path + "data.template",
               "  Prompt around each document, such as 'Scrivi: {text}' (Enter: none)");
  return true;
}

void ConfigWizard::ask_data(const std::string& path, const std::string& default_answer) {
  ask_list(path + "data.train", "  Token shards to train on, separated by blanks", default_answer);
  if (has(path + "data.validation")) return;
  ask_until("  Validation shards as name=path, separated by blanks (Enter: none)", "",
            [&](const std::string& answer) {
              std::vector<Setting> sets;
              for (const std::string& set : split_list(answer)) {
                const size_t equals = std::min(set.find('='), set.size());
                sets.push_back({path + "data.validation." + set.substr(0, equals),
                                set.substr(std::min(equals + 1, set.size()))});
              }
              return sets;
            });
}

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
  command
      .add_option("--model", flags.model,
                  "Hugging Face folder that round 1 starts from; relative to the project's folder")
      ->type_name(kFolderType);
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
    return to->add_option("-p,--project", flags->project, "the project's folder (default: .)")
        ->type_name(kFolderType);
  };
  add_project(command);
  add_create_flags(*command, *flags);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) create(*flags);
  });

  CLI::App* check = command->add_subcommand("validate", "list all problems, with file:line:column");
  CLI::Option* project = add_project(check);
  check->add_option("file", flags->file, "a file or project folder")
      ->type_name(kPathType)
      ->excludes(project);
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
  preset->add_option("name", flags->preset, "a name of the list")->type_name(kPresetType);
  preset->callback([flags] { show_preset(flags->preset); });

  CLI::App* show =
      command->add_subcommand("show", "print the experiment with every default filled in");
  add_project(show);
  show->callback([flags] {
    std::fputs(format_experiment(config::load_experiment(flags->project)).c_str(), stdout);
  });
}

}  // namespace xffl
