#include "xffl/config/presets.h"

#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "yaml_reader.h"
#include "yaml_text.h"

namespace xffl::config {

std::span<const EmbeddedFile> shipped_presets();  // of configs/facilities/; generated

namespace {

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
