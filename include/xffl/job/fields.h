// The table of fields: one description of each struct's fields. The readers and writers of
// xffl.yaml, job.json and report.json use the tables, and the JSON schema and
// docs/reference/configuration_keys.md come from the same tables.
//
// A field has the name of its struct's member; its default is the member's initializer. The
// member's type decides the field's text: a duration as "24h" in xffl.yaml, an enumeration by its
// names_of(), a struct as a section with the fields of its own table.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/base/enum_names.h"
#include "xffl/base/names.h"

namespace xffl::job {

enum class Type {
  kDeduced,         // from the member's type
  kText,            // one line
  kProjectName,     //
  kHostPath,        // a path of this machine, relative to the project folder or absolute
  kSitePath,        // a path at the facility; as kHostPath when the facility is this machine
  kInteger,         //
  kNumber,          //
  kDuration,        // "24h"; its value and range are in milliseconds
  kSize,            // "64GB"; its value and range are in bytes
  kBoolean,         // true or false
  kChoice,          // one of `choices`
  kSection,         // a mapping with the fields of `table`
  kItems,           // a list of mappings with the fields of `table` and distinct "name"s
  kTrainer,         // builtin, {command: [...]} or {program: path}
  kEnvironment,     // a list of shell lines, or a mapping NAME: value
  kSitePaths,       // one path or a list
  kHostPaths,       // one path or a list
  kTexts,           // one or a list of lines, each as kText
  kValidationSets,  // a mapping name: path
  kFacilities,      // a mapping name: fields of `table`
};

using Value =
    std::variant<std::monostate, std::string, int64_t, double, bool, std::vector<std::string>>;

enum class FileKind { kBoth, kYaml, kJson };

struct FieldTable;

/// "a, b or c".
std::string alternatives(std::span<const std::string_view> names);

struct Field {
  std::string_view name{};
  std::string_view help{};
  Type type = Type::kDeduced;
  FileKind file = FileKind::kBoth;  // the files that have the field
  double min = 0;                   // of a kTexts: 1 excludes an empty list
  double max = 0;                   // of a text in JSON: its bytes; 0: kMaxTextBytes
  bool below_max = false;           // `max` itself is excluded
  int64_t multiple = 1;             // an integer or duration must be a multiple
  std::vector<std::string_view> choices{};
  std::string_view default_text{};  // shown as the default when the struct holds no default
  bool required = false;            // in xffl.yaml; JSON has all fields
  const FieldTable* table = nullptr;
  std::string_view pattern{};  // ECMAScript; of a kText or of each line of kTexts in xffl.yaml
  std::string_view shape{};    // the pattern in words: "a name such as 'booster'"
  // A further problem of a text, as the end of a sentence; "" for a valid text.
  std::string (*validate)(std::string_view text) = nullptr;
  // Returns whether the field applies to an object, by the struct's other fields; null: it always
  // does.
  std::function<bool(const void* object)> applies{};
  std::string_view condition{};  // applies() in words: "access: ssh"
  bool omit_default = false;     // xffl.yaml omits the field while it has its default
  bool operational = false;      // may change during a run: it does not affect the model
  bool nullable = false;         // JSON: null for an empty std::optional
  bool omit_empty = false;       // JSON: absent when it has its default
  /// JSON: the first format version with the field. A job.json that has the field needs this
  /// version.
  int since = 1;

  // The function field() sets the following members. `object` is the struct to which the field's
  // table belongs.
  std::function<Value(const void* object)> get{};
  std::function<void(void* object, const Value& value)> set{};
  std::function<void*(void* object)> inner{};               // the struct of a section's table
  std::function<bool(const void* object)> is_set{};         // with omit_* or nullable
  std::function<std::vector<void*>(void* object)> items{};  // of a list of structs
  std::function<void*(void* object)> append{};              // adds an item
  Value default_value{};
  bool is_unsigned = false;

  /// "a, b or c": the choices.
  std::string alternatives() const;
};

struct FieldTable {
  FieldTable(std::vector<Field> all);  // NOLINT: a braced list is a table

  const Field* find(std::string_view name) const;  // of xffl.yaml
  std::vector<std::string_view> names() const;     // of xffl.yaml

  std::vector<Field> yaml, json;  // in the order of the file
};

inline constexpr double kMaxSteps = 1e9;
inline constexpr double kMaxBatchSize = 1 << 24;
inline constexpr double kMaxShardRanks = 1 << 20;
inline constexpr double kMaxCount = 9007199254740992;  // 2^53: exact in every reader of JSON
inline constexpr size_t kMaxTextBytes = 4000;

/// The table of TrainingSpec: `training` in xffl.yaml and job.json.
const FieldTable& training_fields();

/// For Field::validate: the name of a validation set is [A-Za-z0-9._-]{1,64}.
std::string validate_set_name(std::string_view text);

template <class Member>
constexpr bool is_duration = false;
template <class Rep, class Period>
constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;
template <class Member>
constexpr bool is_struct_list = false;
template <class Item>
constexpr bool is_struct_list<std::vector<Item>> =
    std::is_class_v<Item> && !std::is_constructible_v<std::string, Item>;

template <class Member>
constexpr Type deduced_type() {
  if constexpr (std::is_enum_v<Member>) return Type::kChoice;
  if constexpr (is_duration<Member>) return Type::kDuration;
  if constexpr (std::is_same_v<Member, bool>) return Type::kBoolean;
  if constexpr (std::is_integral_v<Member>) return Type::kInteger;
  if constexpr (std::is_floating_point_v<Member>) return Type::kNumber;
  if constexpr (std::is_same_v<Member, std::string>) return Type::kText;
  if constexpr (std::is_same_v<Member, std::vector<std::string>>) return Type::kTexts;
  if constexpr (std::is_same_v<Member, std::filesystem::path>) return Type::kHostPath;
  if constexpr (std::is_same_v<Member, std::vector<std::filesystem::path>>) return Type::kHostPaths;
  if constexpr (std::is_same_v<Member, RemotePath>) return Type::kSitePath;
  if constexpr (std::is_same_v<Member, ProjectName>) return Type::kProjectName;
  if constexpr (is_struct_list<Member>) return Type::kItems;
  return Type::kSection;
}

template <class Member>
Value to_value(const Member& member) {
  if constexpr (std::is_enum_v<Member>) {
    return std::string(to_string(member));
  } else if constexpr (is_duration<Member>) {
    return int64_t{std::chrono::duration_cast<std::chrono::milliseconds>(member).count()};
  } else if constexpr (std::is_same_v<Member, bool> || std::is_same_v<Member, double>) {
    return member;
  } else if constexpr (std::is_integral_v<Member>) {
    return static_cast<int64_t>(member);
  } else if constexpr (std::is_same_v<Member, std::filesystem::path>) {
    return member.string();
  } else if constexpr (std::is_same_v<Member, std::vector<std::filesystem::path>>) {
    return std::vector<std::string>(member.begin(), member.end());
  } else if constexpr (requires { member.str(); }) {
    return member.str();
  } else if constexpr (std::is_constructible_v<Value, Member>) {
    return member;
  } else {
    return {};  // a struct: the fields of its table hold its values
  }
}

template <class Member>
void from_value(Member& member, const Value& value) {
  if constexpr (std::is_enum_v<Member>) {
    if (const auto parsed = parse_enum<Member>(std::get<std::string>(value))) member = *parsed;
  } else if constexpr (is_duration<Member>) {
    const std::chrono::milliseconds milliseconds(std::get<int64_t>(value));
    member = std::chrono::duration_cast<Member>(milliseconds);
  } else if constexpr (std::is_same_v<Member, bool> || std::is_same_v<Member, double>) {
    member = std::get<Member>(value);
  } else if constexpr (std::is_integral_v<Member>) {
    member = static_cast<Member>(std::get<int64_t>(value));
  } else if constexpr (std::is_same_v<Member, std::vector<std::filesystem::path>>) {
    const auto& texts = std::get<std::vector<std::string>>(value);
    member.assign(texts.begin(), texts.end());
  } else if constexpr (std::is_constructible_v<Member, std::string>) {
    member = Member(std::get<std::string>(value));
  } else if constexpr (std::is_constructible_v<Value, Member>) {
    member = std::get<Member>(value);
  }
}

/// Makes the field `name` that reads and writes the struct's `member`. `field` may hold further
/// properties of the description, such as bounds.
template <class Object, class Member>
Field field(std::string_view name, Member Object::*member, std::string_view help = {},
            Field field = {}) {
  const auto in = [member](void* object) -> Member& {
    return static_cast<Object*>(object)->*member;
  };
  const auto of = [member](const void* object) -> const Member& {
    return static_cast<const Object*>(object)->*member;
  };
  field.name = name;
  field.help = help;
  if (field.type == Type::kDeduced) field.type = deduced_type<Member>();
  field.get = [of](const void* object) { return to_value(of(object)); };
  field.set = [in](void* object, const Value& value) { from_value(in(object), value); };
  field.default_value = to_value(Object{}.*member);
  field.is_unsigned = std::is_unsigned_v<Member>;
  if constexpr (NamedEnum<Member>) {
    const auto names = names_of(Member{});
    field.choices.assign(names.begin(), names.end());
  } else if constexpr (is_duration<Member>) {
    field.multiple = std::chrono::duration_cast<std::chrono::milliseconds>(Member(1)).count();
  } else if constexpr (is_struct_list<Member>) {
    field.items = [in](void* object) {
      std::vector<void*> items;
      for (auto& item : in(object)) items.push_back(&item);
      return items;
    };
    field.append = [in](void* object) -> void* { return &in(object).emplace_back(); };
  } else if constexpr (requires(Member optional) { optional.emplace(); }) {
    field.inner = [in](void* object) -> void* {
      return in(object) ? &*in(object) : &in(object).emplace();
    };
    field.is_set = [of](const void* object) { return of(object).has_value(); };
  } else if (field.type == Type::kSection) {
    field.inner = [in](void* object) -> void* { return &in(object); };
  }
  if constexpr (std::equality_comparable<Member> && !is_struct_list<Member>) {
    if (field.omit_default || field.omit_empty)
      field.is_set = [of, initial = Object{}.*member](const void* object) {
        return !(of(object) == initial);
      };
  }
  return field;
}

}  // namespace xffl::job
