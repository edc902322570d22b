#include "checkpoint_json.h"

#include <algorithm>

#include "xffl/base/sha256.h"
#include "xffl/job/job_report.h"

namespace xffl::train {
namespace {

constexpr int64_t kMaxParts = 1 << 20;
constexpr int64_t kMaxCount = int64_t{1} << 53;  // exact as a double
constexpr size_t kMaxNameBytes = 200;

void check_version(JsonObject& object, int expected) {
  const int64_t version = object.integer("version");
  if (version != expected)
    object.fail_unsupported("version", std::to_string(version), std::to_string(expected));
}

// A plain file name of the checkpoint's folder.
bool is_part_name(std::string_view name) {
  constexpr std::string_view kCharacters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find_first_not_of(kCharacters) == std::string_view::npos;
}

void check_files(JsonObject& object) {
  const JsonObject files = object.object("files");
  for (const auto& [name, value] : files.json().items()) {
    if (!is_part_name(name)) object.fail("files", "should have plain file names as keys");
    JsonObject file(value, files.where() + ": " + name);
    file.integer("size", 0);
    if (!is_sha256_hex(file.string("sha256")))
      file.fail("sha256", "should be 64 lower-case hexadecimal digits");
  }
}

void check_numbers(const Json& list, JsonObject& object, std::string_view key) {
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_number))
    object.fail(key, "should be a list of numbers");
}

void check_counts(JsonObject& object) {
  const Json& counts = object.at("counts");
  if (!counts.is_array() || counts.empty()) object.fail("counts", "should have a list per group");
  for (const Json& group : counts) {
    check_numbers(group, object, "counts");
    const auto in_range = [](const Json& value) {
      const double number = value.get<double>();
      return number >= 0 && number <= static_cast<double>(kMaxCount);
    };
    if (group.size() != kNumCounts || !std::all_of(group.begin(), group.end(), in_range))
      object.fail("counts", "should have " + std::to_string(kNumCounts) +
                                " numbers from 0 to 2^53 for each group");
  }
}

// The fields of TrainingState.
void check_training(JsonObject& object) {
  for (const char* key : {"best_validation", "best_amid"}) object.number(key);
  for (const char* key : {"losses", "nll_before"}) check_numbers(object.at(key), object, key);
  for (const char* key : {"accuracies", "accuracy_before"})
    if (object.has(key)) check_numbers(object.at(key), object, key);
  object.integer("worse_validations", 0, kMaxCount);
  for (const char* key : {"measured_at", "best_steps"}) object.integer(key, -1, kMaxCount);
  object.integer("steps_since_exchange", 0, kMaxCount);
  object.string("job");
  job::parse_job_report(object.string("report"), object.where() + ": report");
}

}  // namespace

Json parse_checkpoint_json(std::string_view text, std::string_view origin) {
  Json json = parse_json(text, origin, {.max_bytes = kMaxStateBytes, .max_depth = 6});
  JsonObject object(json, std::string(origin));
  if (object.has("of")) {
    JsonObject of = object.object("of");
    check_version(of, kOptimizerStateVersion);
    object.integer("round", 1, INT32_MAX);
    object.string("name");
  } else {
    check_version(object, kCheckpointVersion);
    check_training(object);
  }
  object.integer("num_parts", 1, kMaxParts);
  object.integer("outer_steps", 0, kMaxCount);
  check_files(object);
  check_counts(object);
  return json;
}

}  // namespace xffl::train
