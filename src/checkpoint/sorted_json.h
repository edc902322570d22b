// JSON objects with many keys.
//
// parse_json keeps the writer's key order and therefore looks keys up by walking: right for a
// configuration, quadratic for the thousands of tensors of a header, where a hostile file could
// make it take minutes.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "xffl/base/json.h"

namespace xffl::checkpoint {

using SortedJson = nlohmann::json;

/// As parse_json, in time n log n; objects are sorted by key.
SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits);

}  // namespace xffl::checkpoint
