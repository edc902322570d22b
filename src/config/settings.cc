#include "xffl/config/settings.h"

#include <algorithm>
#include <optional>

#include "keys.h"
#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/config/load.h"
#include "yaml.h"

namespace xffl::config {

std::span<const EmbeddedFile> shipped_presets();  // of configs/facilities/; generated

namespace {

/// A part of the file: a value, or children in the order in which they are written.
struct Branch {
  std::string name;
  std::optional<std::string> value;  // YAML on one line
  std::vector<Branch> children;
};

[[noreturn]] void reject(const Setting& setting, const std::string& problem) {
  throw Error(ErrorKind::kUsage, "'" + log::printable(setting.path + "=" + setting.value, 200) +
                                     "' is not a setting: " + problem);
}

std::vector<std::string> split(const Setting& setting) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= setting.path.size();) {
    size_t end = std::min(setting.path.find('.', begin), setting.path.size());
    // A validation set's name may hold dots.
    if (names.size() == 4 && names[2] == "data" && names[3] == "validation")
      end = setting.path.size();
    names.push_back(setting.path.substr(begin, end - begin));
    if (names.back().empty()) reject(setting, "expected key.path=value");
    begin = end + 1;
  }
  return names;
}

std::string value_yaml(const Setting& setting) {
  if (setting.value.empty()) return "{}";
  if (std::string_view("[{\"'").find(setting.value.front()) == std::string_view::npos) {
    // A number or duration stays as it is: in quotes it would be text.
    return yaml_scalar(setting.value);
  }
  std::vector<Problem> problems;
  const Node root = read_yaml("k: " + setting.value + "\n", problems);
  if (!problems.empty()) reject(setting, "its value is not YAML: " + problems.front().message);
  if (root.keys.size() != 1 || setting.value.find('\n') != std::string::npos)
    reject(setting, "its value is not one YAML value on one line");
  return setting.value;
}

void insert(Branch& root, const Setting& setting) {
  Branch* at = &root;
  for (const std::string& name : split(setting)) {
    if (at->value == "{}") at->value.reset();  // an earlier setting only named the facility
    if (at->value) reject(setting, "'" + log::printable(at->name, 80) + "' has a value already");
    auto child = std::find_if(at->children.begin(), at->children.end(),
                              [&](const Branch& other) { return other.name == name; });
    if (child == at->children.end())
      child = at->children.insert(at->children.end(), Branch{.name = name});
    at = &*child;
  }
  if (!at->children.empty() && !setting.value.empty())
    reject(setting, "keys below it are set already");
  if (at->children.empty()) at->value = value_yaml(setting);
}

/// Sorts known keys in the table's order, and unknown keys, which the parser will name, last.
void sort_keys(Branch& branch, const FieldTable* section) {
  const auto rank = [&](const Branch& child) {
    const Field* key = section->find(child.name);
    return key == nullptr ? section->yaml.size() : static_cast<size_t>(key - section->yaml.data());
  };
  if (section == nullptr) return;
  std::stable_sort(branch.children.begin(), branch.children.end(),
                   [&](const Branch& a, const Branch& b) { return rank(a) < rank(b); });
  for (Branch& child : branch.children) {
    const Field* key = section->find(child.name);
    if (key == nullptr || key->table == nullptr) continue;
    if (key->type != Type::kFacilities) {
      sort_keys(child, key->table);
    } else {
      for (Branch& facility : child.children) sort_keys(facility, key->table);
    }
  }
}

void write(const Branch& branch, size_t indent, std::string& text) {
  for (const Branch& child : branch.children) {
    text += std::string(indent, ' ') + yaml_scalar(child.name) + ":";
    if (child.value) text += " " + *child.value;
    text += "\n";
    write(child, indent + 2, text);
  }
}

void flatten(const Node& node, const std::string& path, std::vector<Setting>& settings) {
  if (node.kind == Node::Kind::kMapping) {
    for (size_t i = 0; i < node.keys.size(); ++i)
      flatten(node.items[i], path + "." + node.keys[i].text, settings);
    return;
  }
  if (node.kind != Node::Kind::kList) return settings.push_back({path, node.text});
  std::vector<std::string> items;
  for (const Node& item : node.items) items.push_back(item.text);
  settings.push_back({path, yaml_flow_list(items)});
}

}  // namespace

Setting parse_setting(std::string_view text) {
  const size_t equals = text.find('=');
  Setting setting{std::string(text.substr(0, equals)), ""};
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size())
    reject(setting, "expected key.path=value, such as training.learning_rate=1e-4");
  setting.value = text.substr(equals + 1);
  split(setting);
  return setting;
}

std::string format_settings(const std::vector<Setting>& settings) {
  Branch root;
  for (const Setting& setting : settings) insert(root, setting);
  sort_keys(root, &experiment_keys());
  std::string text =
      "# An xffl experiment. 'xffl config validate' checks it, 'xffl config show' adds the "
      "defaults,\n"
      "# and 'xffl config keys' lists every key.\n";
  write(root, 0, text);
  return text;
}

std::string check_settings(const std::vector<Setting>& settings,
                           const std::filesystem::path& project_folder) {
  try {
    parse_experiment(format_settings(settings), "", project_folder);
    return {};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) return error.what();
    // ":3:4: error: message" per line
    const std::string_view all = error.what();
    std::string problems;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      std::string_view line = all.substr(begin, end - begin);
      begin = end + 1;
      line = line.substr(std::min(line.size(), line.find("error: ") + 7));
      if (!line.starts_with("missing required key"))
        problems += (problems.empty() ? "" : "\n") + std::string(line);
    }
    return problems;
  }
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const EmbeddedFile& preset : shipped_presets()) names.push_back(preset.name);
  return names;
}

std::string_view preset_text(std::string_view name) {
  std::string known;
  for (const EmbeddedFile& preset : shipped_presets()) {
    if (preset.name == name) return preset.text;
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  throw Error(ErrorKind::kNotFound,
              "there is no preset '" + log::printable(name, 80) + "'; there are: " + known);
}

std::vector<Setting> preset_settings(std::string_view name, std::string_view facility) {
  std::vector<Problem> problems;
  const Node root = read_yaml(preset_text(name), problems);
  if (!problems.empty())
    throw Error(ErrorKind::kInternal,
                "the preset '" + std::string(name) + "' is damaged: " + problems.front().message);
  std::vector<Setting> settings;
  flatten(root, "facilities." + std::string(facility), settings);
  return settings;
}

}  // namespace xffl::config
