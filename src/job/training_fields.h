// The part of job.json that says how to train, and the readers that it shares with the rest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fields.h"

namespace xffl::job {

/// The value of one of the enumerations, by its name in the file.
template <class Parse>
auto read_enum(JsonObject& object, std::string_view key, Parse parse, std::string_view names) {
  const std::string text = read_text(object, key, 100);
  const auto value = parse(text);
  if (!value) object.fail(key, "should be " + std::string(names) + ", found '" + text + "'");
  return *value;
}

inline FloatType read_float_type(JsonObject& object, std::string_view key) {
  return read_enum(object, key, parse_float_type, "fp32, bf16 or fp16");
}

TrainingSpec read_training(JsonObject object);
Json write_training(const TrainingSpec& training);

}  // namespace xffl::job
