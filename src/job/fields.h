// The fields that job.json and report.json share, and the checks of their texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "xffl/base/json.h"
#include "xffl/job/job_spec.h"

namespace xffl::job {

inline constexpr int64_t kMaxCount = int64_t{1}
                                     << 53;  // every reader of JSON keeps such integers exact
inline constexpr uint64_t kMaxJobFileBytes = 1u << 20;
inline constexpr size_t kMaxValidationSets = 1000;

/// The object's "version". Throws kCorrupt unless it is one of oldest .. newest.
int read_version(JsonObject& object, int oldest, int newest);

JobKey read_key(JsonObject object);
Json write_key(const JobKey& key);

/// A count: an integer in [min, max].
int64_t read_count(JsonObject& object, std::string_view key, int64_t min = 0,
                   int64_t max = kMaxCount);
/// A finite number in [min, max].
double read_number(JsonObject& object, std::string_view key, double min, double max);
/// 64 lower-case hexadecimal digits.
std::string read_sha256(JsonObject& object, std::string_view key);
/// At most `max_bytes` printable ASCII or UTF-8 bytes: no control characters.
std::string read_text(JsonObject& object, std::string_view key, size_t max_bytes);
/// The name of a validation set: [A-Za-z0-9._-]{1,64}.
std::string read_set_name(JsonObject& object, std::string_view key);
/// The array under `key`, of at most `max_items`.
const Json& read_array(JsonObject& object, std::string_view key, size_t max_items);
/// The file's text: two spaces of indentation, a final newline. Throws kCorrupt for text that is
/// not UTF-8.
std::string dump_document(const Json& document);
/// "validation[2]", for the errors of an array's item.
std::string item_where(const JsonObject& object, std::string_view key, size_t index);

}  // namespace xffl::job
