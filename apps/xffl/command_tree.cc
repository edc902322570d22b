#include "command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace xffl {

std::vector<const CLI::App*> subcommands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

const CLI::App* subcommand(const CLI::App& command, const std::string& name) {
  const auto found =
      command.get_subcommands([&](const CLI::App* one) { return one->check_name(name); });
  return found.empty() ? nullptr : found.front();
}

std::vector<const CLI::Option*> named_options(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* one) { return !one->get_group().empty() && one->nonpositional(); });
}

std::vector<const CLI::Option*> arguments(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* one) { return !one->get_group().empty() && one->get_positional(); });
}

std::string value_type(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();  // "TEXT:{bf16,fp32}", "INT:INT in [1 - 9]"
  return type.substr(0, type.find(':'));
}

std::vector<std::string> choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find(":{");
  const size_t close = type.find('}', open);
  std::vector<std::string> values;
  if (open == std::string::npos || close == std::string::npos) return values;
  for (size_t begin = open + 2; begin < close;) {
    const size_t end = std::min(type.find(',', begin), close);
    values.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return values;
}

std::vector<std::string> dashed_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace xffl
