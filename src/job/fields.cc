#include "fields.h"

#include <algorithm>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/names.h"
#include "xffl/base/sha256.h"

namespace xffl::job {
namespace {

std::string in_quotes(std::string_view text) {
  return std::string("'").append(log::printable(text, 100)).append("'");
}

/// A string that must be one of our strong names; the alphabet's message is kept.
template <class StrongName>
std::string read_name(JsonObject& object, std::string_view key) {
  std::string text = object.string(key);
  try {
    return StrongName(text).str();
  } catch (const Error& error) {
    object.fail(key, std::string("should be another name: ") + error.what());
  }
}

std::string read_nonce(JsonObject& object) {
  std::string nonce = object.string("nonce");
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (nonce.size() != 32 || !std::all_of(nonce.begin(), nonce.end(), is_hex)) {
    object.fail("nonce", "should be 32 lower-case hexadecimal digits, found " + in_quotes(nonce));
  }
  return nonce;
}

}  // namespace

int read_version(JsonObject& object, int oldest, int newest) {
  const int64_t version = object.integer("version");
  if (version < oldest || version > newest) {
    const std::string known = (oldest < newest ? std::to_string(oldest) + " to " : std::string()) +
                              std::to_string(newest);
    object.fail("version", "should be format version " + known + ", found " +
                               std::to_string(version) +
                               "; both sides must run releases with the same format version");
  }
  return static_cast<int>(version);
}

JobKey read_key(JsonObject object) {
  JobKey key;
  key.project = read_name<ProjectName>(object, "project");
  key.run = read_name<RunName>(object, "run");
  key.round = static_cast<int>(object.integer("round", 1, 1'000'000));
  key.facility = read_name<FacilityName>(object, "facility");
  key.attempt = static_cast<int>(object.integer("attempt", 1, 1'000'000));
  key.nonce = read_nonce(object);
  object.refuse_other_keys();
  return key;
}

Json write_key(const JobKey& key) {
  return Json{{"project", key.project},   {"run", key.run},         {"round", key.round},
              {"facility", key.facility}, {"attempt", key.attempt}, {"nonce", key.nonce}};
}

int64_t read_count(JsonObject& object, std::string_view key, int64_t min, int64_t max) {
  return object.integer(key, min, max);
}

double read_number(JsonObject& object, std::string_view key, double min, double max) {
  const double value = object.number(key);
  if (!(value >= min && value <= max)) {
    object.fail(key, "should lie in " + Json(min).dump() + " .. " + Json(max).dump() + ", found " +
                         Json(value).dump());
  }
  return value;
}

std::string read_sha256(JsonObject& object, std::string_view key) {
  std::string text = object.string(key);
  if (!is_sha256_hex(text)) {
    object.fail(key, "should be 64 lower-case hexadecimal digits, found " + in_quotes(text));
  }
  return text;
}

std::string read_text(JsonObject& object, std::string_view key, size_t max_bytes) {
  std::string text = object.string(key);
  if (text.size() > max_bytes) {
    object.fail(key, "should be at most " + std::to_string(max_bytes) + " bytes, found " +
                         std::to_string(text.size()));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) {
    object.fail(key, "should have no control characters, found " + in_quotes(text));
  }
  return text;
}

std::string read_set_name(JsonObject& object, std::string_view key) {
  std::string name = object.string(key);
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), is_plain)) {
    object.fail(key, "should be 1 to 64 characters of A-Z a-z 0-9 . _ -, found " + in_quotes(name));
  }
  return name;
}

const Json& read_array(JsonObject& object, std::string_view key, size_t max_items) {
  const Json& array = object.at(key);
  if (!array.is_array()) {
    object.fail(key, std::string("should be a list, found ") + array.type_name());
  }
  if (array.size() > max_items) {
    object.fail(key, "should have at most " + std::to_string(max_items) + " items, found " +
                         std::to_string(array.size()));
  }
  return array;
}

std::string dump_document(const Json& document) {
  try {
    return document.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kCorrupt, "cannot write JSON: a text in it is not UTF-8");
  }
}

std::string item_where(const JsonObject& object, std::string_view key, size_t index) {
  return object.where() + ": " + std::string(key) + "[" + std::to_string(index) + "]";
}

}  // namespace xffl::job
