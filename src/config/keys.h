// The table of keys of xffl.yaml: the one description from which parsing, checks, suggestions,
// defaults, the JSON schema, the written file and the reference in docs/ come.
//
// A key's name is its struct field's (training.steps_per_round, which is TrainingSpec.steps, is
// the exception). Its default is what its struct holds when made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/config/experiment.h"

namespace xffl::config {

enum class Type {
  kText,            // one line
  kProjectName,     //
  kHostPath,        // a path of this machine, relative to the project folder or absolute
  kSitePath,        // a path at the facility; the same while the facility is this machine
  kInteger,         //
  kNumber,          //
  kDuration,        // "24h"; its value and range are in milliseconds
  kSize,            // "64GB"; its value and range are in bytes
  kBoolean,         // true or false
  kChoice,          // one of `choices`
  kSection,         // a mapping with the keys of `section`
  kTrainer,         // builtin, {command: [...]} or {program: path}
  kEnvironment,     // a list of shell lines, or a mapping NAME: value
  kSitePaths,       // one or a list
  kHostPaths,       // one or a list
  kTexts,           // one or a list of lines, each as kText
  kValidationSets,  // a mapping name: path
  kFacilities,      // a mapping name: keys of `section`
};

using Value = std::variant<std::monostate, std::string, int64_t, double, bool,
                           std::vector<std::string>, std::vector<job::ValidationSet>>;

/// How a key reaches its field: `object` is the struct that the key's section describes.
struct Binding {
  Value (*get)(const void* object) = nullptr;
  void (*set)(void* object, const Value& value) = nullptr;
  void* (*inner)(void* object) = nullptr;  // of a section: the struct that its keys describe
};

struct Section;

struct Key {
  std::string_view name;
  Type type;
  std::string_view help;
  Binding binding;
  double min = 0;
  double max = 0;
  bool below_max = false;  // `max` itself is excluded
  int64_t multiple = 1;    // an integer or duration must be one of it
  std::vector<std::string_view> choices;
  std::string_view fallback;  // shown as the default where the struct does not say it
  bool required = false;
  const Section* section = nullptr;
  std::string_view pattern;  // of a kText or of each kTexts: what it matches, in ECMAScript
  std::string_view shape;    // the pattern in words: "a name such as 'booster'"
  std::string (*refuse)(std::string_view text) = nullptr;  // more that is wrong with it, else ""
  // True where the struct's other fields give the key a meaning; without it: always.
  bool (*applies)(const void* object) = nullptr;
  std::string_view condition;  // when it applies, in words: "access: ssh"
  // Of a section that may be left out: whether it was given. Without it: always.
  bool (*given)(const void* object) = nullptr;
  bool operational = false;  // may change while a run goes on: it decides nothing about the model
};

struct Section {
  std::vector<Key> keys;
  std::function<Value(const Key&)> fallback;  // a key's default

  const Key* find(std::string_view name) const;
  std::vector<std::string_view> names() const;
};

/// The whole file: its struct is Experiment.
const Section& experiment_keys();
/// Of `training`, in the file and in a facility: its struct is job::TrainingSpec.
const Section& training_keys();
/// Of one facility: its struct is Facility.
const Section& facility_keys();

/// "an integer from 1 to 100": what a key wants, for messages and the reference.
std::string expectation(const Key& key);

/// A scalar key's value as it is written in the file; empty for none.
std::string value_text(const Key& key, const Value& value);

}  // namespace xffl::config
