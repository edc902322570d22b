#include "keys.h"
#include "scalars.h"
#include "xffl/base/json.h"
#include "xffl/config/load.h"

namespace xffl::config {
namespace {

constexpr const char* kName = "^[a-z0-9][a-z0-9_-]{0,31}$";
constexpr const char* kDuration = "^(0|(0|[1-9][0-9]*) ?(ms|s|m|h|d))$";
constexpr const char* kSize = "^(0|(0|[1-9][0-9]*) ?(B|kB|KiB|MB|MiB|GB|GiB|TB|TiB))$";

Json text_schema(const Field& key = {}) {
  Json schema{{"type", "string"}, {"minLength", 1}};
  if (!key.pattern.empty()) schema["pattern"] = "^(" + std::string(key.pattern) + ")$";
  return schema;
}

Json list_schema(Json items, int min_items) {
  return Json{{"type", "array"}, {"items", std::move(items)}, {"minItems", min_items}};
}

Json map_schema(const char* name_pattern, Json values) {
  return Json{{"type", "object"},
              {"propertyNames", {{"pattern", name_pattern}}},
              {"additionalProperties", std::move(values)}};
}

Json section_schema(const FieldTable& section);

Json number_schema(const Field& key) {
  const bool integer = key.type == Type::kInteger;
  const auto bound = [&](double value) {
    // 2^63 is not an int64: the largest int64 replaces it.
    if (integer && value >= 9.2e18) return Json(std::numeric_limits<int64_t>::max());
    return integer ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  return Json{{"type", integer ? "integer" : "number"},
              {"minimum", bound(key.min)},
              {key.below_max ? "exclusiveMaximum" : "maximum", bound(key.max)}};
}

Json trainer_schema() {
  const auto one_key = [](const char* name, Json value) {
    return Json{{"type", "object"},
                {"properties", {{name, std::move(value)}}},
                {"required", Json::array({name})},
                {"additionalProperties", false}};
  };
  return Json{
      {"oneOf",
       Json::array({Json{{"enum", {"builtin", "bundle"}}}, one_key("program", text_schema()),
                    one_key("command", list_schema(Json{{"type", "string"}}, 1))})}};
}

/// A number with its unit, or a bare 0.
Json unit_schema(const char* pattern) {
  return Json{
      {"anyOf", Json::array({Json{{"type", "string"}, {"pattern", pattern}}, Json{{"const", 0}}})}};
}

Json one_or_list_schema(const Json& item, int min_items) {
  return Json{{"oneOf", Json::array({item, list_schema(item, min_items)})}};
}

Json environment_schema() {
  Json value{{"type", Json::array({"string", "number", "boolean"})}};
  return Json{{"oneOf", Json::array({list_schema(Json{{"type", "string"}}, 0),
                                     map_schema("^[A-Za-z_][A-Za-z0-9_]*$", std::move(value))})}};
}

Json type_schema(const Field& key) {
  switch (key.type) {
    case Type::kText:
    case Type::kHostPath:
    case Type::kSitePath:
      return text_schema(key);
    case Type::kTexts:
    case Type::kHostPaths:
    case Type::kSitePaths:
      return one_or_list_schema(text_schema(key),
                                key.type == Type::kSitePaths || key.min > 0 ? 1 : 0);
    case Type::kSize:
      return unit_schema(kSize);
    case Type::kBoolean:
      return Json{{"type", "boolean"}};
    case Type::kProjectName:
      return Json{{"type", "string"}, {"pattern", "^[a-z0-9][a-z0-9_-]{0,63}$"}};
    case Type::kInteger:
    case Type::kNumber:
      return number_schema(key);
    case Type::kDuration:
      return unit_schema(kDuration);
    case Type::kChoice:
      return Json{{"enum", key.choices}};
    case Type::kSection:
      return section_schema(*key.table);
    case Type::kFacilities: {
      Json schema = map_schema(kName, section_schema(*key.table));
      schema["minProperties"] = 1;
      return schema;
    }
    case Type::kTrainer:
      return trainer_schema();
    case Type::kEnvironment:
      return environment_schema();
    case Type::kValidationSets:
      return map_schema("^[A-Za-z0-9._-]{1,64}$", text_schema());
    case Type::kDeduced:
    case Type::kItems:
      break;
  }
  return {};
}

/// The default of a key; null without a default.
Json default_value(const Field& key) {
  if (key.required || !key.default_text.empty()) return {};
  const Value& value = key.default_value;
  if (const auto* integer = std::get_if<int64_t>(&value); integer && key.type == Type::kInteger)
    return Json(*integer);
  if (const auto* number = std::get_if<double>(&value)) return Json(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return Json(*flag);
  const std::string text = value_text(key, value);
  return text.empty() ? Json() : Json(text);
}

Json section_schema(const FieldTable& section) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& key : section.yaml) {
    Json schema{{"description", key.help}};
    schema.update(type_schema(key));
    if (Json value = default_value(key); !value.is_null()) schema["default"] = value;
    properties[std::string(key.name)] = std::move(schema);
    if (key.required) required.push_back(key.name);
  }
  Json schema{{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  schema["additionalProperties"] = false;
  return schema;
}

/// One row per key. Leaves out a facility's training, which has the same table as the file's.
void append_rows(const FieldTable& section, const std::string& path, std::string& text) {
  for (const Field& key : section.yaml) {
    const std::string name = path + std::string(key.name);
    std::string default_text(key.required ? "required" : key.default_text);
    if (default_text.empty()) default_text = value_text(key, key.default_value);
    text += "| `" + name + "` | " + expectation(key) + " | " + default_text + " | " +
            std::string(key.help) + " |\n";
    if (key.table == nullptr || (key.table == &job::training_fields() && !path.empty())) continue;
    append_rows(*key.table, name + (key.type == Type::kFacilities ? ".<facility>." : "."), text);
  }
}

}  // namespace

std::string json_schema() {
  Json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "xffl.yaml"},
              {"description", "A federation: one model, several facilities."}};
  schema.update(section_schema(experiment_keys()));
  return schema.dump(2) + "\n";
}

std::string key_reference() {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  append_rows(experiment_keys(), "", text);
  return text;
}

}  // namespace xffl::config
