// Strict reading of possibly hostile JSON; errors name the file and the key path.
//
// nlohmann::json is header-only and serves as the value type. parse_json bounds size and depth and
// rejects duplicate keys. JsonObject names the file and the key path in every error. Files that
// releases exchange may have keys that the reader does not know, within one version
// (docs/decisions/0016-unknown-keys-within-a-version.md); other files reject them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace xffl {

using Json = nlohmann::ordered_json;  // keeps the writer's key order; finds a key in linear time
using SortedJson = nlohmann::json;    // for objects of thousands of keys

struct JsonLimits {
  uint64_t max_bytes = 8u << 20;
  int max_depth = 32;
  size_t max_keys = 4096;  // of one object
};

/// Throws kCorrupt with `origin` (a file name) and the byte position for invalid JSON, too many
/// bytes or levels, duplicate keys or trailing text.
Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits = {});
/// As parse_json(), in time O(n log n) for any text.
SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits);

/// A strict view of one JSON object. `json` must outlive the view. Throws kCorrupt.
class JsonObject {
 public:
  /// `where` names the object in errors: "job.json: training".
  JsonObject(const Json& json, std::string where);

  bool has(std::string_view key) const;  // present and not null
  const Json& at(std::string_view key);  // required, any type
  std::string string(std::string_view key);
  bool boolean(std::string_view key);
  double number(std::string_view key);  // finite
  int64_t integer(std::string_view key, int64_t min = INT64_MIN, int64_t max = INT64_MAX);
  JsonObject object(std::string_view key);
  std::vector<std::string> strings(std::string_view key);

  std::string string_or(std::string_view key, std::string default_value);
  bool boolean_or(std::string_view key, bool default_value);
  double number_or(std::string_view key, double default_value);
  int64_t integer_or(std::string_view key, int64_t default_value, int64_t min = INT64_MIN,
                     int64_t max = INT64_MAX);

  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  /// The key "version" of an exchanged file, an integer in oldest .. newest.
  int version(int oldest, int newest);
  /// Requires the keys "format" and "version" of an exchanged file. Throws kUnsupported.
  void require_format(std::string_view format, int version);
  /// Throws when the object has a key that the caller has not read.
  void reject_unknown_keys() const;
  [[noreturn]] void fail(std::string_view key, std::string_view problem) const;
  /// Throws kUnsupported with the value and the values that this build supports.
  [[noreturn]] void fail_unsupported(std::string_view key, std::string_view found,
                                     std::string_view supported) const;

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string, std::less<>> read_keys_;
};

}  // namespace xffl
