#include "xffl/base/json.h"

#include <cmath>
#include <limits>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl {
namespace {

// The first pass over a JSON text builds no values: it limits depth and keys and finds duplicate
// keys in O(n log n).
class Guard final : public nlohmann::json_sax<Json> {
 public:
  Guard(std::string_view origin, const JsonLimits& limits) : origin_(origin), limits_(limits) {}

  bool start_object(size_t) override {
    open();
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    --depth_;
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) override {
    open();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (!keys_.back().insert(text).second)
      fail("the key '" + log::printable(text, 200) + "' appears twice");
    if (keys_.back().size() > limits_.max_keys)
      fail("an object has more than " + std::to_string(limits_.max_keys) + " keys");
    return true;
  }
  bool parse_error(size_t byte, const std::string&,
                   const nlohmann::json::exception& error) override {
    fail("not JSON at byte " + std::to_string(byte) + ": " + log::printable(error.what(), 300));
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

 private:
  void open() {
    if (++depth_ > limits_.max_depth)
      fail("JSON nested deeper than " + std::to_string(limits_.max_depth) + " levels");
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kCorrupt, std::string(origin_) + ": " + problem);
  }

  std::string_view origin_;
  const JsonLimits& limits_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

void check_json(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    throw Error(ErrorKind::kCorrupt, std::string(origin) + ": " + std::to_string(text.size()) +
                                         " bytes of JSON, at most " +
                                         std::to_string(limits.max_bytes) + " are allowed");
  // nlohmann's lexer takes a NUL for the end of the text and ignores the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::kCorrupt,
                std::string(origin) + ": not JSON at byte " + std::to_string(nul + 1) + ": a NUL");
  Guard guard(origin, limits);
  Json::sax_parse(text, &guard);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view origin, JsonLimits limits) {
  check_json(text, origin, limits);
  return Json::parse(text);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits) {
  check_json(text, origin, limits);
  return SortedJson::parse(text);
}

JsonObject::JsonObject(const Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json_.is_object())
    throw Error(ErrorKind::kCorrupt, where_ + ": expected an object, found " + json_.type_name());
}

void JsonObject::fail(std::string_view key, std::string_view problem) const {
  throw Error(ErrorKind::kCorrupt, where_ + ": '" + std::string(key) + "' " + std::string(problem));
}

void JsonObject::fail_unsupported(std::string_view key, std::string_view found,
                                  std::string_view supported) const {
  throw Error(ErrorKind::kUnsupported, where_ + ": '" + std::string(key) + "' is " +
                                           log::printable(found, 100) + "; this build supports " +
                                           std::string(supported));
}

bool JsonObject::has(std::string_view key) const {
  const auto it = json_.find(std::string(key));
  return it != json_.end() && !it->is_null();
}

const Json& JsonObject::at(std::string_view key) {
  read_keys_.emplace(key);
  const auto it = json_.find(std::string(key));
  if (it == json_.end()) fail(key, "is missing");
  return *it;
}

std::string JsonObject::string(std::string_view key) {
  const Json& value = at(key);
  if (!value.is_string()) fail(key, std::string("should be a string, found ") + value.type_name());
  return value.get<std::string>();
}

bool JsonObject::boolean(std::string_view key) {
  const Json& value = at(key);
  if (!value.is_boolean())
    fail(key, std::string("should be true or false, found ") + value.type_name());
  return value.get<bool>();
}

double JsonObject::number(std::string_view key) {
  const Json& value = at(key);
  if (!value.is_number()) fail(key, std::string("should be a number, found ") + value.type_name());
  const double number = value.get<double>();
  if (!std::isfinite(number)) fail(key, "should be a finite number");
  return number;
}

int64_t JsonObject::integer(std::string_view key, int64_t min, int64_t max) {
  const Json& value = at(key);
  if (!value.is_number_integer())
    fail(key, "should be an integer, found " + log::printable(value.dump(), 60));
  const bool too_large = value.is_number_unsigned() &&
                         value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max());
  const int64_t number = too_large ? 0 : value.get<int64_t>();
  if (too_large || number < min || number > max)
    fail(key, "should lie in " + std::to_string(min) + " .. " + std::to_string(max) + ", found " +
                  value.dump());
  return number;
}

JsonObject JsonObject::object(std::string_view key) {
  return JsonObject(at(key), where_ + ": " + std::string(key));
}

std::vector<std::string> JsonObject::strings(std::string_view key) {
  const Json& value = at(key);
  if (!value.is_array())
    fail(key, std::string("should be a list of strings, found ") + value.type_name());
  std::vector<std::string> texts;
  for (const Json& item : value) {
    if (!item.is_string())
      fail(key, std::string("should hold strings only, found ") + item.type_name());
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::string JsonObject::string_or(std::string_view key, std::string default_value) {
  read_keys_.emplace(key);
  return has(key) ? string(key) : default_value;
}

bool JsonObject::boolean_or(std::string_view key, bool default_value) {
  read_keys_.emplace(key);
  return has(key) ? boolean(key) : default_value;
}

double JsonObject::number_or(std::string_view key, double default_value) {
  read_keys_.emplace(key);
  return has(key) ? number(key) : default_value;
}

int64_t JsonObject::integer_or(std::string_view key, int64_t default_value, int64_t min,
                               int64_t max) {
  read_keys_.emplace(key);
  return has(key) ? integer(key, min, max) : default_value;
}

int JsonObject::version(int oldest, int newest) {
  const int64_t found = integer("version");
  if (found < oldest || found > newest)
    fail("version", "should be format version " +
                        (oldest < newest ? std::to_string(oldest) + " to " : std::string()) +
                        std::to_string(newest) + ", found " + std::to_string(found) +
                        "; both sides must run releases with the same format version");
  return static_cast<int>(found);
}

void JsonObject::require_format(std::string_view format, int version) {
  if (const std::string found = string("format"); found != format)
    fail_unsupported("format", found, format);
  if (const int64_t found = integer("version"); found != version)
    fail_unsupported("version", std::to_string(found), std::to_string(version));
}

void JsonObject::reject_unknown_keys() const {
  for (const auto& [key, value] : json_.items())
    if (!read_keys_.contains(key))
      throw Error(ErrorKind::kCorrupt, where_ + ": unknown key '" + log::printable(key, 80) + "'");
}

}  // namespace xffl
