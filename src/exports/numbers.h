// Numbers as the exported formats want them.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

#include "xffl/base/clock.h"

namespace xffl::exports {

/// The shortest decimal text that reads back as the same number, in any locale.
inline std::string decimal(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return std::to_string(static_cast<int64_t>(value));
  std::array<char, 64> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// Seconds since 1970.
inline double seconds_of(Clock::UtcTime time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace xffl::exports
