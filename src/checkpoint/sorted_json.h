// A parser for JSON objects with many keys.
//
// parse_json is for files with few keys: it keeps the writer's order and looks keys up linearly. A
// model's header names thousands of tensors, a hostile header more. This parser takes O(n log n)
// for any text.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "xffl/base/json.h"

namespace xffl::checkpoint {

using SortedJson = nlohmann::json;

/// As parse_json, but sorts objects by key and bounds the keys per object by `max_keys`.
SortedJson parse_sorted_json(std::string_view text, std::string_view origin, JsonLimits limits,
                             size_t max_keys);

}  // namespace xffl::checkpoint
