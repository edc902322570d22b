#include "config_wizard.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/settings.h"

namespace xffl {
namespace {

using config::Setting;

/// One line without blanks around it. Throws kCancelled at the end of the input.
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

}  // namespace

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
    const std::vector<std::string> items = split_list(answer);
    if (items.size() <= 1) return std::vector<Setting>{{path, items.empty() ? "" : items.front()}};
    std::string list;
    for (const std::string& item : items) list += (list.empty() ? "[\"" : ", \"") + item + "\"";
    return std::vector<Setting>{{path, list + "]"}};
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
    ask_site(path);
    ask_data(path, "");
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

/// The settings that a cluster behind SSH needs first.
void ConfigWizard::ask_site(const std::string& path) {
  ask_list(path + "ssh.hosts", "  Its log-in nodes, separated by blanks", "");
  ask(path + "ssh.user", "  Your account's name there", "");
  ask_optional(path + "ssh.keys",
               "  Your private key, a whole path here (Enter: the agent, then ~/.ssh/id_*)");
  ask_optional(path + "slurm.account", "  Slurm account that pays (Enter: your default one)");
  ask_optional(path + "slurm.partition", "  Partition (Enter: the default one)");
  ask(path + "slurm.nodes", "  Nodes of a job", "1");
  ask(path + "slurm.gpus_per_node", "  GPUs of a node, one rank each; 0: none", "0");
  ask(path + "slurm.time", "  Walltime of a job", "1h");
  ask(path + "workdir", "  Folder there for xffl's files, shared by all nodes", "");
  if (!has(path + "trainer") && !has(path + "image"))
    ask_optional(path + "trainer.program",
                 "  Path of xffl-train there (Enter: the one in the job's PATH)");
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

}  // namespace xffl
