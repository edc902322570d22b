// Elapsed seconds of the steady clock.
#pragma once

#include <chrono>

namespace xffl::train {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_between(SteadyClock::time_point begin, SteadyClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(SteadyClock::time_point begin) {
  return seconds_between(begin, SteadyClock::now());
}

}  // namespace xffl::train
