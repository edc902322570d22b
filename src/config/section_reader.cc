#include "section_reader.h"

#include <algorithm>
#include <array>

#include "scalars.h"
#include "suggest.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"

namespace xffl::config {
namespace {

constexpr size_t kMaxLineBytes = 4000;

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

/// Where a key that is unknown here would belong, as "training.schedule"; empty when nowhere.
std::string home_of(std::string_view name, const Section& section, const std::string& path = {},
                    int depth = 0) {
  if (depth == 0 && section.find(name) != nullptr) return "the file's top level";
  for (const Key& key : section.keys) {
    if (key.section == nullptr || depth > 3) continue;
    const std::string inner =
        join(path, key.name) + (key.type == Type::kFacilities ? ".<name>" : "");
    if (key.section->find(name) != nullptr) return "'" + inner + "'";
    if (auto found = home_of(name, *key.section, inner, depth + 1); !found.empty()) return found;
  }
  return {};
}

bool is_variable_name(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && is_letter(text.front()) && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

bool is_set_name(std::string_view text) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.size() <= 64 &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

bool ends_in_backslash(std::string_view line) {
  const size_t last = line.find_last_not_of('\\');
  return (line.size() - (last == std::string_view::npos ? 0 : last + 1)) % 2 != 0;
}

}  // namespace

std::string in_quotes(std::string_view text) { return "'" + log::printable(text, 80) + "'"; }

void SectionReader::problem(Mark mark, std::string message) {
  problems_.push_back({mark.line, mark.column, std::move(message)});
}

Mark SectionReader::mark(std::string path) const {
  for (;;) {
    if (const auto found = marks_.find(path); found != marks_.end()) return found->second;
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return {};
    path.resize(dot);
  }
}

void SectionReader::read(const Node& mapping, const Section& section, void* object,
                         const std::string& path) {
  std::set<std::string> meant;
  refuse_unknown(mapping, section, path, meant);
  for (const Key& key : section.keys) {
    const std::string key_path = join(path, key.name);
    const Node* node = mapping.find(key.name);
    if (node == nullptr) {
      if (key.required && !meant.contains(std::string(key.name)))
        problem(mapping.mark, "missing required key " + in_quotes(key_path) + ": " +
                                  std::string(key.help) + "; expected " + expectation(key));
      continue;
    }
    note(key_path, node->mark);
    if (key.applies != nullptr && !key.applies(object))
      problem(node->mark,
              in_quotes(key_path) + " has a meaning only with " + std::string(key.condition));
    else if (node->kind == Node::Kind::kNull)
      problem(node->mark, in_quotes(key_path) + " has no value: expected " + expectation(key));
    else
      read_key(*node, key, object, key_path);
  }
}

void SectionReader::refuse_unknown(const Node& mapping, const Section& section,
                                   const std::string& path, std::set<std::string>& meant) {
  for (const Node& key : mapping.keys) {
    if (section.find(key.text) != nullptr) continue;
    const std::vector<std::string_view> names = section.names();
    std::string message = "unknown key " + in_quotes(key.text);
    if (!path.empty()) message += " in " + in_quotes(path);
    const std::string near = nearest(key.text, names);
    const std::string home = home_of(key.text, experiment_keys());
    if (!home.empty()) {
      message += ": it belongs in " + home;
    } else if (!near.empty()) {
      message += ": did you mean '" + near + "'?";
      if (mapping.find(near) == nullptr) meant.insert(near);
    } else {
      message += "; there are: ";
      for (const std::string_view name : names)
        message += (name == names.front() ? "" : ", ") + std::string(name);
    }
    problem(key.mark, std::move(message));
  }
}

void SectionReader::read_key(const Node& node, const Key& key, void* object,
                             const std::string& path) {
  Value value;
  switch (key.type) {
    case Type::kSection:
      if (expect_mapping(node, key, path) && key.binding.inner != nullptr)
        read(node, *key.section, key.binding.inner(object), path);
      return;
    case Type::kFacilities:
      expect_mapping(node, key, path);
      return;
    case Type::kTrainer:
      return read_trainer(node, key, *static_cast<Facility*>(object), path);
    case Type::kEnvironment:
      value = environment(node, key, path);
      break;
    case Type::kSitePaths:
    case Type::kHostPaths:
      value = paths(node, key, path);
      break;
    case Type::kTexts:
      value = texts(node, key, path);
      break;
    case Type::kValidationSets:
      value = validation_sets(node, key, path);
      break;
    default:
      value = scalar(node, key, path);
  }
  if (!std::holds_alternative<std::monostate>(value)) key.binding.set(object, value);
}

bool SectionReader::expect_mapping(const Node& node, const Key& key, const std::string& path) {
  if (node.kind == Node::Kind::kMapping) return true;
  wrong_type(node, key, path);
  return false;
}

void SectionReader::wrong_type(const Node& node, const Key& key, const std::string& path,
                               const std::string& hint) {
  problem(node.mark, in_quotes(path) + " should be " + expectation(key) + ", found " +
                         describe(node) + (hint.empty() ? "" : ": " + hint));
}

Value SectionReader::scalar(const Node& node, const Key& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar) {
    wrong_type(node, key, path);
    return {};
  }
  if (!check_line(node, path)) return {};
  switch (key.type) {
    case Type::kInteger:
    case Type::kNumber:
    case Type::kDuration:
    case Type::kSize:
      return number(node, key, path);
    case Type::kBoolean:
      return boolean(node, key, path);
    case Type::kChoice:
      return choice(node, key, path);
    case Type::kHostPath:
    case Type::kSitePath:
      return absolute_path(node, key, path);
    case Type::kProjectName:
      try {
        return ProjectName(node.text).str();
      } catch (const Error& error) {
        problem(node.mark, error.what());
        return {};
      }
    default:
      return text(node, key, path);
  }
}

Value SectionReader::choice(const Node& node, const Key& key, const std::string& path) {
  if (std::find(key.choices.begin(), key.choices.end(), node.text) != key.choices.end())
    return node.text;
  problem(node.mark, in_quotes(path) + " should be " + expectation(key) + ", found " +
                         in_quotes(node.text) + did_you_mean(node.text, key.choices));
  return {};
}

bool SectionReader::check_line(const Node& node, const std::string& path) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(node.text.begin(), node.text.end(), is_control)) {
    problem(node.mark,
            in_quotes(path) + " holds a line break or control character: " + in_quotes(node.text));
    return false;
  }
  if (node.text.size() > kMaxLineBytes) {
    problem(node.mark, in_quotes(path) + " has " + std::to_string(node.text.size()) +
                           " bytes, at most " + std::to_string(kMaxLineBytes) + " are allowed");
    return false;
  }
  return true;
}

Value SectionReader::absolute_path(const Node& node, const Key& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar || node.text.empty()) {
    wrong_type(node, key, path);
    return {};
  }
  if (!check_line(node, path)) return {};
  if (node.text.front() == '~') {
    problem(node.mark, in_quotes(path) + ": '~' is not expanded, write the whole path instead of " +
                           in_quotes(node.text));
    return {};
  }
  if (remote_ && key.type == Type::kSitePath && node.text.front() != '/') {
    problem(node.mark, in_quotes(path) +
                           " is a path at another machine and should start with '/', " + "found " +
                           in_quotes(node.text));
    return {};
  }
  // At a facility reached on this machine, paths may start at the project folder.
  const std::filesystem::path whole = (project_folder_ / node.text).lexically_normal();
  try {
    return RemotePath(whole.string()).str();
  } catch (const Error& error) {
    problem(node.mark, in_quotes(path) + ": " + error.what());
    return {};
  }
}

void SectionReader::read_trainer(const Node& node, const Key& key, Facility& facility,
                                 const std::string& path) {
  static constexpr std::array<std::string_view, 2> kNames{"command", "program"};
  if (node.kind == Node::Kind::kScalar && node.text == "builtin") return;
  if (node.kind != Node::Kind::kMapping || node.keys.size() != 1) {
    const bool other = node.kind == Node::Kind::kScalar;
    return wrong_type(node, key, path,
                      other ? "for a program of your own write {command: [...]}" : "");
  }
  const Node& value = node.items.front();
  const std::string name = node.keys.front().text;
  note(path + "." + name, value.mark);
  if (name == "command") return read_command(value, facility, path + ".command");
  if (name == "program") {
    const Value program =
        absolute_path(value, {.name = "program", .type = Type::kSitePath}, path + ".program");
    if (const auto* text = std::get_if<std::string>(&program)) facility.trainer_program = *text;
    return;
  }
  problem(node.keys.front().mark,
          "unknown key " + in_quotes(name) + " in " + in_quotes(path) +
              (did_you_mean(name, kNames).empty() ? "; there are: command, program"
                                                  : did_you_mean(name, kNames)));
}

void SectionReader::read_command(const Node& node, Facility& facility, const std::string& path) {
  if (node.kind != Node::Kind::kList || node.items.empty())
    return problem(node.mark, in_quotes(path) + " should be a list of words such as " +
                                  "[python3, ./train.py], found " + describe(node));
  for (const Node& word : node.items) {
    if (word.kind != Node::Kind::kScalar)
      return problem(word.mark, in_quotes(path) + " should hold words, found " + describe(word));
    if (!check_line(word, path)) return;
    const bool at_project = word.text.starts_with("./") || word.text.starts_with("../");
    if (at_project && remote_)
      problem(word.mark, in_quotes(path) + ": " + in_quotes(word.text) +
                             " starts at the project's folder, which is not on that machine");
    facility.trainer_command.push_back(
        at_project ? (project_folder_ / word.text).lexically_normal().string() : word.text);
  }
  const std::string& program = facility.trainer_command.front();
  if (program.empty() || program.front() == '-')
    problem(node.items.front().mark,
            in_quotes(path) + " should start with a program, found " + in_quotes(program));
}

Value SectionReader::environment(const Node& node, const Key& key, const std::string& path) {
  if (node.kind != Node::Kind::kList && node.kind != Node::Kind::kMapping) {
    wrong_type(node, key, path);
    return {};
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    const bool named = node.kind == Node::Kind::kMapping;
    if (item.kind != Node::Kind::kScalar) {
      problem(item.mark,
              in_quotes(path) + " should hold single lines, found " + describe(item) +
                  (named || item.kind != Node::Kind::kMapping ? "" : ": put it in quotes"));
    } else if (!check_line(item, path)) {
      continue;
    } else if (named && !is_variable_name(node.keys[i].text)) {
      problem(node.keys[i].mark,
              in_quotes(node.keys[i].text) + " cannot be the name of an environment variable");
    } else if (named) {
      lines.push_back("export " + node.keys[i].text + "=" + quote_for_shell(item.text));
    } else if (item.text.find_first_not_of(' ') != std::string::npos &&
               item.text[item.text.find_first_not_of(' ')] == '#') {
      problem(item.mark, "a line of " + in_quotes(path) +
                             " starts with '#', so it could be a batch directive");
    } else if (ends_in_backslash(item.text)) {
      problem(item.mark,
              "a line of " + in_quotes(path) + " ends in a backslash: single lines only");
    } else {
      lines.push_back(item.text);
    }
  }
  return lines;
}

Value SectionReader::paths(const Node& node, const Key& key, const std::string& path) {
  const bool needed = key.type == Type::kSitePaths;
  if (node.kind == Node::Kind::kMapping ||
      (needed && node.kind == Node::Kind::kList && node.items.empty())) {
    wrong_type(node, key, path, node.items.empty() ? "it is empty" : "");
    return {};
  }
  std::vector<std::string> all;
  const auto append = [&](const Node& item) {
    const Type type = needed ? Type::kSitePath : Type::kHostPath;
    const Value value = absolute_path(item, {.name = key.name, .type = type}, path);
    if (const auto* text = std::get_if<std::string>(&value)) all.push_back(*text);
  };
  if (node.kind == Node::Kind::kScalar) append(node);
  for (const Node& item : node.items) append(item);
  return all;
}

Value SectionReader::validation_sets(const Node& node, const Key& key, const std::string& path) {
  if (!expect_mapping(node, key, path)) return {};
  std::vector<job::ValidationSet> sets;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string& name = node.keys[i].text;
    if (!is_set_name(name))
      problem(node.keys[i].mark, in_quotes(name) + " cannot name a validation set: expected 1 to " +
                                     "64 of A-Z, a-z, 0-9, '.', '_' and '-'");
    const Value value =
        absolute_path(node.items[i], {.name = key.name, .type = Type::kSitePath}, join(path, name));
    if (const auto* text = std::get_if<std::string>(&value)) sets.push_back({name, *text});
  }
  return sets;
}

}  // namespace xffl::config
