#include "keys.h"
#include "scalars.h"
#include "xffl/base/error.h"

namespace xffl::config {

const Key* Section::find(std::string_view name) const {
  for (const Key& key : keys)
    if (key.name == name) return &key;
  return nullptr;
}

std::vector<std::string_view> Section::names() const {
  std::vector<std::string_view> all;
  for (const Key& key : keys) all.push_back(key.name);
  return all;
}

std::string expectation(const Key& key) {
  const auto range = [&](auto format) {
    return " from " + format(key.min) + (key.below_max ? " to below " : " to ") + format(key.max);
  };
  const auto integer = [](double value) {
    return value >= 9.2e18 ? std::string("2^63 - 1") : std::to_string(static_cast<int64_t>(value));
  };
  switch (key.type) {
    case Type::kText:
      return key.shape.empty() ? "one line of text" : std::string(key.shape);
    case Type::kProjectName:
      return "a name of a-z, 0-9, '_' and '-'";
    case Type::kHostPath:
    case Type::kSitePath:
      return "a path";
    case Type::kInteger:
      return "an integer" + range(integer);
    case Type::kNumber:
      return "a number" + range(format_number);
    case Type::kDuration:
      return "a duration such as 500ms, 30s, 5m, 24h or 7d" + range([](double value) {
               return format_duration(std::chrono::milliseconds(static_cast<int64_t>(value)));
             });
    case Type::kSize:
      return "a size such as 512MB, 64GB or 1TiB" +
             range([](double value) { return format_size(static_cast<int64_t>(value)); });
    case Type::kBoolean:
      return "true or false";
    case Type::kTexts:
      return key.shape.empty() ? "a line of text or a list of them"
                               : std::string(key.shape) + ", or a list of them";
    case Type::kChoice: {
      std::string all;
      for (const std::string_view name : key.choices)
        all += (all.empty() ? "" : name == key.choices.back() ? " or " : ", ") + std::string(name);
      return all;
    }
    case Type::kSection:
    case Type::kFacilities:
      return "a mapping of keys to values";
    case Type::kTrainer:
      return "builtin, {program: path} or {command: [word, ...]}";
    case Type::kEnvironment:
      return "a list of shell lines or a mapping NAME: value";
    case Type::kSitePaths:
    case Type::kHostPaths:
      return "a path or a list of paths";
    case Type::kValidationSets:
      return "a mapping of names to paths";
  }
  throw Error(ErrorKind::kInternal, "a key has an unknown type");
}

std::string value_text(const Key& key, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return format_number(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    if (key.type == Type::kSize) return format_size(*integer);
    return key.type == Type::kDuration ? format_duration(std::chrono::milliseconds(*integer))
                                       : std::to_string(*integer);
  }
  return {};
}

}  // namespace xffl::config
