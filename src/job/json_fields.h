// job.json and report.json by their tables of fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "xffl/base/json.h"
#include "xffl/job/fields.h"

namespace xffl::job {

inline constexpr uint64_t kMaxJobFileBytes = 1u << 20;

/// Sets the fields of `out`, the struct of `table`; `object` must have the fields of this format
/// version, and may have others, which newer releases write. Throws kCorrupt.
void read_fields(JsonObject& object, const FieldTable& table, void* out, int version);

/// Appends the fields of `object`, the struct of `table`, to `json`; with `all` also those that the
/// file omits.
void write_fields(Json& json, const FieldTable& table, const void* object, bool all = false);

/// The lowest format version that has all fields of `object` that write_fields() writes; at least
/// `oldest`. Structs in lists do not count.
int needed_version(const FieldTable& table, const void* object, int oldest);

/// The file's text: two spaces of indentation, a final newline. Throws kCorrupt for text that is
/// not UTF-8.
std::string dump_document(const Json& document);

const FieldTable& job_key_fields();

// For Field::validate.
std::string validate_sha256(std::string_view text);  // 64 lower-case hexadecimal digits
std::string validate_sha256_or_empty(std::string_view text);

}  // namespace xffl::job
