// JSON objects with many keys.
//
// parse_json is for files of a few keys: it keeps the writer's order and looks keys up by walking.
// The header of a model names thousands of tensors, and a hostile one more: this parser takes time
// n log n, whatever the text.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "xffl/base/json.h"

namespace xffl::checkpoint {

using SortedJson = nlohmann::json;

/// As parse_json, but objects are sorted by key, and none may have more than `max_keys` of them.
SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits,
                             size_t max_keys);

}  // namespace xffl::checkpoint
