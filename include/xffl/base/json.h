// Reading JSON that may be hostile, with errors that say where.
//
// nlohmann::json is header-only and serves as the value type; parsing goes through parse_json,
// which bounds size and depth and refuses duplicate keys, and objects are read through JsonObject,
// which names the file and the key path in every error and refuses keys that nobody asked for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace xffl {

using Json = nlohmann::ordered_json;  // keeps the writer's key order

struct JsonLimits {
  uint64_t max_bytes = 8u << 20;
  int max_depth = 32;
  size_t max_keys = 4096;  // of one object
};

/// Throws kCorrupt with `origin` (a file name) and the byte position: not JSON, too large, too
/// deep, duplicate keys, trailing text.
Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits = {});

/// A strict view of one JSON object. Does not own `json`, which must outlive it. Throws kCorrupt.
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

  std::string string_or(std::string_view key, std::string otherwise);
  bool boolean_or(std::string_view key, bool otherwise);
  double number_or(std::string_view key, double otherwise);
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t min = INT64_MIN,
                     int64_t max = INT64_MAX);

  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  /// Throws when the object has a key that was never asked for.
  void refuse_other_keys() const;
  [[noreturn]] void fail(std::string_view key, std::string_view problem) const;

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace xffl
