// Values that are read from the text of one scalar, or of each in a list.
#include <regex>

#include "scalars.h"
#include "section_reader.h"

namespace xffl::config {
namespace {

constexpr size_t kMaxPatternBytes = 1024;  // std::regex recurses over its text

bool matches(std::string_view pattern, const std::string& text) {
  if (text.size() > kMaxPatternBytes) return false;
  return std::regex_match(text, std::regex(pattern.begin(), pattern.end()));
}

}  // namespace

Value SectionReader::number(const Node& node, const Key& key, const std::string& path) {
  if (node.quoted) {
    wrong_type(node, key, path, "write it without quotes");
    return {};
  }
  Value value;
  double size = 0;
  std::string hint;
  const auto take = [&](int64_t integer, std::string_view multiple_hint) {
    size = static_cast<double>(integer);
    if (integer % key.multiple == 0)
      value = integer;
    else
      hint = multiple_hint;
  };
  if (key.type == Type::kNumber) {
    if (const auto number = parse_number(node.text)) value = size = *number;
  } else if (key.type == Type::kInteger) {
    if (const auto integer = parse_integer(node.text))
      take(*integer, "");
    else
      hint = integer_hint(node.text);
  } else if (const auto bytes = key.type == Type::kSize ? parse_size(node.text) : std::nullopt) {
    take(*bytes, "");
  } else if (const auto duration =
                 key.type == Type::kDuration ? parse_duration(node.text) : std::nullopt) {
    take(duration->count(), "write whole seconds");
  } else if (parse_number(node.text)) {
    hint = "add the unit";
  }
  const bool in_range = size >= key.min && (key.below_max ? size < key.max : size <= key.max);
  if (!std::holds_alternative<std::monostate>(value) && in_range) return value;
  wrong_type(node, key, path, hint);
  return {};
}

Value SectionReader::boolean(const Node& node, const Key& key, const std::string& path) {
  const auto flag = node.quoted ? std::nullopt : parse_boolean(node.text);
  if (flag) return *flag;
  wrong_type(node, key, path, node.quoted ? "write it without quotes" : "");
  return {};
}

Value SectionReader::text(const Node& node, const Key& key, const std::string& path) {
  if (node.kind != Node::Kind::kScalar || node.text.empty()) {
    wrong_type(node, key, path);
    return {};
  }
  if (!check_line(node, path)) return {};
  if (!key.pattern.empty() && !matches(key.pattern, node.text)) {
    wrong_type(node, key, path);
    return {};
  }
  const std::string refused = key.refuse == nullptr ? std::string() : key.refuse(node.text);
  if (refused.empty()) return node.text;
  problem(node.mark, in_quotes(path) + ": " + in_quotes(node.text) + " " + refused);
  return {};
}

Value SectionReader::texts(const Node& node, const Key& key, const std::string& path) {
  if (node.kind == Node::Kind::kMapping) {
    wrong_type(node, key, path);
    return {};
  }
  std::vector<std::string> all;
  const auto append = [&](const Node& item) {
    const Value value = text(item, key, path);
    if (const auto* line = std::get_if<std::string>(&value)) all.push_back(*line);
  };
  if (node.kind == Node::Kind::kScalar) append(node);
  for (const Node& item : node.items) append(item);
  return all;
}

}  // namespace xffl::config
