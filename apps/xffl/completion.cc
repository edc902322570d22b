#include "completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <set>

#include "command_tree.h"
#include "project.h"
#include "xffl/base/error.h"
#include "xffl/config/load.h"
#include "xffl/config/settings.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRuns = 100;  // the newest ones

// A path as the user typed it: a shell expands the tilde and removes the quotes later. Variables
// stay as they are.
fs::path typed_path(std::string text) {
  std::erase_if(text, [](char c) { return c == '"' || c == '\'' || c == '\\'; });
  const char* home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/"))) text.replace(0, 1, home);
  return text;
}

// bash passes "--color=al" as the words "--color", "=" and "al". Joins these words; returns whether
// the last word was joined.
bool join_at_equals(std::vector<std::string>& words) {
  std::vector<std::string> joined;
  bool last = false;
  for (size_t i = 0; i < words.size(); ++i) {
    last = words[i] == "=" && !joined.empty() && joined.back().starts_with("--");
    if (!last) {
      joined.push_back(words[i]);
      continue;
    }
    joined.back() += "=";
    if (i + 1 < words.size()) joined.back() += words[++i];
  }
  words = std::move(joined);
  return last;
}

// The words before the completed word: the command, and the meaning of the next word.
class Words {
 public:
  explicit Words(const CLI::App& app) : command_(&app) {}

  void take(const std::string& word);
  Completion complete(const std::string& word) const;

 private:
  void take_option(const std::string& word);
  void take_value(const CLI::Option& option, const std::string& value);
  bool takes_more_values(const CLI::Option& option) const {
    return option.get_allow_extra_args() && option.get_items_expected_max() > 1;
  }
  void add_options(Completion& completion) const;
  void add_values(Completion& completion, const CLI::Option& option, std::string_view typed) const;
  void add_arguments(Completion& completion, std::string_view typed) const;

  const CLI::App* command_;
  const CLI::Option* awaiting_ = nullptr;  // the next word may be its value
  bool value_required_ = false;            // the next word is its value
  bool other_program_ = false;             // the next words belong to another program
  std::set<const CLI::Option*> used_;
  std::vector<std::string> arguments_;
  ProjectOptions project_;
};

void Words::take(const std::string& word) {
  if (other_program_) return;
  if (awaiting_ != nullptr && (value_required_ || !word.starts_with('-')))
    return take_value(*awaiting_, word);
  awaiting_ = nullptr;
  if (word == "--" || word == "--arguments") {
    other_program_ = true;
  } else if (word.starts_with('-') && word.size() > 1) {
    take_option(word);
  } else if (const CLI::App* next = subcommand(*command_, word)) {
    command_ = next;
    used_.clear();
    arguments_.clear();
  } else {
    arguments_.push_back(word);
  }
}

void Words::take_option(const std::string& word) {
  const bool is_long = word.starts_with("--");
  const size_t equals = is_long ? word.find('=') : std::string::npos;
  const CLI::Option* option =
      command_->get_option_no_throw(is_long ? word.substr(0, equals) : word.substr(0, 2));
  if (option == nullptr) return;
  used_.insert(option);
  if (option->get_items_expected_max() == 0) {  // -vq: two flags
    if (!is_long && word.size() > 2) take_option("-" + word.substr(2));
    return;
  }
  if (equals != std::string::npos) return take_value(*option, word.substr(equals + 1));
  if (!is_long && word.size() > 2) return take_value(*option, word.substr(2));
  awaiting_ = option;
  value_required_ = option->get_items_expected_min() > 0;
}

void Words::take_value(const CLI::Option& option, const std::string& value) {
  if (option.check_name("--project")) project_.project = typed_path(value);
  if (option.check_name("--workdir")) project_.workdir = typed_path(value);
  awaiting_ = takes_more_values(option) ? &option : nullptr;
  value_required_ = false;
}

void Words::add_options(Completion& completion) const {
  for (const CLI::Option* option : named_options(*command_)) {
    if (used_.contains(option) && option->get_items_expected_max() <= 1) continue;
    for (const std::string& name : dashed_names(*option))
      completion.candidates.push_back({name, option->get_description()});
  }
}

std::vector<std::string> facility_names(const ProjectOptions& options) {
  std::error_code none;
  std::vector<std::string> names;
  if (!fs::is_regular_file(options.project / "xffl.yaml", none)) return names;  // a FIFO would wait
  for (const config::Facility& facility : config::load_experiment(options.project).facilities)
    names.push_back(facility.name.str());
  return names;
}

std::vector<std::string> run_names(const ProjectOptions& options) {
  std::error_code none;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(options.runs(), none)) try {
      names.push_back(RunName(entry.path().filename()).str());
    } catch (const Error&) {  // another file
    }
  std::sort(names.begin(), names.end());
  if (names.size() > kMaxRuns) names.erase(names.begin(), names.end() - kMaxRuns);
  return names;
}

void Words::add_values(Completion& completion, const CLI::Option& option,
                       std::string_view typed) const {
  const std::string type = value_type(option);
  std::vector<std::string> values = choices(option);
  try {
    if (type == kFacilityType) values = facility_names(project_);
    if (type == kRunType) values = run_names(project_);
  } catch (const std::exception&) {  // an invalid project: `xffl config validate` reports it
  }
  if (type == kPresetType)
    for (const std::string_view name : config::preset_names()) values.emplace_back(name);
  if (type == kFileType || type == kPathType) completion.files = true;
  if (type == kFolderType) completion.folders = true;
  for (const std::string& value : values)
    if (value.starts_with(typed)) completion.candidates.push_back({value, ""});
}

void Words::add_arguments(Completion& completion, std::string_view typed) const {
  const std::vector<const CLI::Option*> all = arguments(*command_);
  size_t taken = arguments_.size();
  for (const CLI::Option* argument : all) {
    const bool many = argument->get_items_expected_max() > 1;
    if (taken > 0 && !many) {
      --taken;
      continue;
    }
    add_values(completion, *argument, typed);
    break;
  }
  std::erase_if(completion.candidates, [&](const Candidate& candidate) {
    return std::find(arguments_.begin(), arguments_.end(), candidate.text) != arguments_.end();
  });
}

Completion Words::complete(const std::string& word) const {
  Completion completion;
  if (other_program_ || command_->get_prefix_command()) {
    completion.files = true;
    return completion;
  }
  if (awaiting_ != nullptr) add_values(completion, *awaiting_, word);
  if (awaiting_ != nullptr && value_required_) return completion;
  const size_t equals = word.find('=');
  if (word.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* option = command_->get_option_no_throw(word.substr(0, equals));
    if (option != nullptr && option->get_items_expected_max() > 0)
      add_values(completion, *option, std::string_view(word).substr(equals + 1));
    for (Candidate& candidate : completion.candidates)
      candidate.text.insert(0, word, 0, equals + 1);
  } else if (word.starts_with('-')) {
    add_options(completion);
  } else {
    for (const CLI::App* command : subcommands(*command_)) {
      completion.candidates.push_back({command->get_name(), command->get_description()});
      for (const std::string& alias : command->get_aliases())
        completion.candidates.push_back({alias, command->get_description()});
    }
    add_arguments(completion, word);
  }
  return completion;
}

// The alphabet that no shell has to quote.
bool is_plain(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) ||
           std::string_view("-_.,=+").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace

Completion complete(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty()) return {};
  const bool joined = join_at_equals(words);
  Words before(app);
  for (size_t i = 0; i + 1 < words.size(); ++i) before.take(words[i]);
  const std::string& word = words.back();
  Completion completion = before.complete(word);
  std::erase_if(completion.candidates, [&](const Candidate& candidate) {
    return !candidate.text.starts_with(word) || !is_plain(candidate.text);
  });
  if (joined)  // bash replaces the part behind '=' only
    for (Candidate& candidate : completion.candidates) candidate.text.erase(0, word.find('=') + 1);
  return completion;
}

std::string format_completion(const Completion& completion) {
  std::string text;
  for (const Candidate& candidate : completion.candidates) {
    std::string description = candidate.description;
    std::replace_if(
        description.begin(), description.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
    text += candidate.text + (description.empty() ? "" : "\t" + description) + "\n";
  }
  if (completion.files) text += ":files\n";
  if (completion.folders) text += ":folders\n";
  return text;
}

}  // namespace xffl
