#include "xffl/job/fields.h"

#include <algorithm>
#include <set>

#include "json_fields.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/job/job_spec.h"

namespace xffl::job {
namespace {

constexpr size_t kMaxTexts = 100'000;
constexpr size_t kMaxItems = 1000;

std::string in_quotes(std::string_view text) {
  return std::string("'").append(log::printable(text, 100)).append("'");
}

/// Returns StrongName's message for an invalid name, "" for a valid name.
template <class StrongName>
std::string validate_name(std::string_view text) {
  try {
    const StrongName checked{std::string(text)};
    return {};
  } catch (const Error& error) {
    return std::string("should be another name: ") + error.what();
  }
}

std::string validate_nonce(std::string_view text) {
  if (text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos)
    return {};
  return "should be 32 lower-case hexadecimal digits, found " + in_quotes(text);
}

/// A valid text of `field`; `key` names it in errors.
std::string read_text(const JsonObject& object, std::string_view key, const Json& value,
                      const Field& field) {
  if (!value.is_string())
    object.fail(key, std::string("should be a string, found ") + value.type_name());
  std::string text = value.get<std::string>();
  const size_t max_bytes = field.max > 0 ? static_cast<size_t>(field.max) : kMaxTextBytes;
  if (text.size() > max_bytes)
    object.fail(key, "should be at most " + std::to_string(max_bytes) + " bytes, found " +
                         std::to_string(text.size()));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control))
    object.fail(key, "should have no control characters, found " + in_quotes(text));
  const std::string problem = field.validate == nullptr ? "" : field.validate(text);
  if (!problem.empty()) object.fail(key, problem);
  return text;
}

std::string read_choice(JsonObject& object, const Field& field) {
  std::string text = read_text(object, field.name, object.at(field.name), {.max = 100});
  if (std::find(field.choices.begin(), field.choices.end(), text) == field.choices.end())
    object.fail(field.name, "should be " + field.alternatives() + ", found " + in_quotes(text));
  return text;
}

Value read_integer(JsonObject& object, const Field& field) {
  if (!field.is_unsigned)
    return object.integer(field.name, static_cast<int64_t>(field.min),
                          static_cast<int64_t>(field.max));
  const Json& value = object.at(field.name);
  if (!value.is_number_unsigned())
    object.fail(field.name, "should be an integer from 0 to 2^64 - 1");
  return static_cast<int64_t>(value.get<uint64_t>());
}

double read_number(JsonObject& object, const Field& field) {
  const double value = object.number(field.name);
  if (!(value >= field.min && value <= field.max))
    object.fail(field.name, "should lie in " + Json(field.min).dump() + " .. " +
                                Json(field.max).dump() + ", found " + Json(value).dump());
  if (field.below_max && value == field.max) object.fail(field.name, "should be below 1, found 1");
  return value;
}

const Json& read_array(JsonObject& object, std::string_view key, size_t max_items) {
  const Json& array = object.at(key);
  if (!array.is_array())
    object.fail(key, std::string("should be a list, found ") + array.type_name());
  if (array.size() > max_items)
    object.fail(key, "should have at most " + std::to_string(max_items) + " items, found " +
                         std::to_string(array.size()));
  return array;
}

std::string item_key(std::string_view key, size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

std::vector<std::string> read_texts(JsonObject& object, const Field& field) {
  std::vector<std::string> texts;
  for (const Json& item : read_array(object, field.name, kMaxTexts))
    texts.push_back(read_text(object, item_key(field.name, texts.size()), item, field));
  return texts;
}

void read_items(JsonObject& object, const Field& field, void* out, int version) {
  std::set<std::string> names;
  for (const Json& json : read_array(object, field.name, kMaxItems)) {
    JsonObject item(json, object.where() + ": " + item_key(field.name, names.size()));
    read_fields(item, *field.table, field.append(out), version);
    const std::string name = item.string("name");
    if (!names.insert(name).second) item.fail("name", "'" + name + "' appears twice");
  }
}

void read_field(JsonObject& object, const Field& field, void* out, int version) {
  switch (field.type) {
    case Type::kInteger:
      return field.set(out, read_integer(object, field));
    case Type::kNumber:
      return field.set(out, read_number(object, field));
    case Type::kBoolean:
      return field.set(out, object.boolean(field.name));
    case Type::kChoice:
      return field.set(out, read_choice(object, field));
    case Type::kText:
      return field.set(out, read_text(object, field.name, object.at(field.name), field));
    case Type::kTexts:
      return field.set(out, read_texts(object, field));
    case Type::kItems:
      return read_items(object, field, out, version);
    case Type::kSection: {
      if (field.nullable && object.at(field.name).is_null()) return;
      JsonObject section = object.object(field.name);
      return read_fields(section, *field.table, field.inner(out), version);
    }
    default:
      throw Error(ErrorKind::kInternal,
                  "the type of the field " + std::string(field.name) + " has no JSON form");
  }
}

bool has_default(const Field& field, const void* object) {
  return field.is_set ? !field.is_set(object) : field.get(object) == field.default_value;
}

Json write_field(const Field& field, const void* object) {
  void* const out = const_cast<void*>(object);  // NOLINT: the accessors take a mutable struct
  Json json = Json::object();
  if (field.type == Type::kItems) {
    json = Json::array();
    for (const void* item : field.items(out))
      write_fields(json.emplace_back(Json::object()), *field.table, item);
  } else if (field.nullable && !field.is_set(object)) {
    json = nullptr;
  } else if (field.type == Type::kSection) {
    write_fields(json, *field.table, field.inner(out));
  } else {
    const Value value = field.get(object);
    if (const auto* integer = std::get_if<int64_t>(&value); integer && field.is_unsigned)
      return static_cast<uint64_t>(*integer);
    std::visit(
        [&](const auto& held) {
          if constexpr (!std::is_same_v<decltype(held), const std::monostate&>) json = held;
        },
        value);
  }
  return json;
}

}  // namespace

FieldTable::FieldTable(std::vector<Field> all) {
  for (Field& field : all) {
    if (field.file != FileKind::kYaml) json.push_back(field);
    if (field.file != FileKind::kJson) yaml.push_back(std::move(field));
  }
}

const Field* FieldTable::find(std::string_view name) const {
  for (const Field& field : yaml)
    if (field.name == name) return &field;
  return nullptr;
}

std::vector<std::string_view> FieldTable::names() const {
  std::vector<std::string_view> all;
  for (const Field& field : yaml) all.push_back(field.name);
  return all;
}

std::string alternatives(std::span<const std::string_view> names) {
  std::string all;
  for (const std::string_view name : names)
    all += (all.empty() ? "" : name == names.back() ? " or " : ", ") + std::string(name);
  return all;
}

std::string Field::alternatives() const { return job::alternatives(choices); }

void read_fields(JsonObject& object, const FieldTable& table, void* out, int version) {
  for (const Field& field : table.json) {
    const bool optional = field.omit_empty || version < field.since;
    if (optional && !object.json().contains(std::string(field.name))) continue;
    read_field(object, field, out, version);
  }
}

void write_fields(Json& json, const FieldTable& table, const void* object, bool all) {
  for (const Field& field : table.json) {
    if (all || !field.omit_empty || !has_default(field, object))
      json[std::string(field.name)] = write_field(field, object);
  }
}

int needed_version(const FieldTable& table, const void* object, int oldest) {
  int version = oldest;
  for (const Field& field : table.json) {
    if (field.omit_empty && has_default(field, object)) continue;
    version = std::max(version, field.since);
    const bool has_inner = field.inner && (!field.nullable || field.is_set(object));
    if (has_inner)
      version =
          needed_version(*field.table, field.inner(const_cast<void*>(object)), version);  // NOLINT
  }
  return version;
}

std::string dump_document(const Json& document) {
  try {
    return document.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kCorrupt, "cannot write JSON: a text in it is not UTF-8");
  }
}

const FieldTable& job_key_fields() {
  constexpr double kMaxNumber = 1e6;
  static const FieldTable fields({
      field("project", &JobKey::project, "", {.validate = validate_name<ProjectName>}),
      field("run", &JobKey::run, "", {.validate = validate_name<RunName>}),
      field("round", &JobKey::round, "", {.min = 1, .max = kMaxNumber}),
      field("facility", &JobKey::facility, "", {.validate = validate_name<FacilityName>}),
      field("attempt", &JobKey::attempt, "", {.min = 1, .max = kMaxNumber}),
      field("nonce", &JobKey::nonce, "", {.validate = validate_nonce}),
  });
  return fields;
}

std::string validate_sha256(std::string_view text) {
  if (is_sha256_hex(text)) return {};
  return "should be 64 lower-case hexadecimal digits, found " + in_quotes(text);
}

std::string validate_sha256_or_empty(std::string_view text) {
  return text.empty() ? "" : validate_sha256(text);
}

std::string validate_set_name(std::string_view text) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (!text.empty() && text.size() <= 64 &&
      text.find_first_not_of(kCharacters) == std::string_view::npos)
    return {};
  return "should be 1 to 64 characters of A-Z a-z 0-9 . _ -, found " + in_quotes(text);
}

}  // namespace xffl::job
