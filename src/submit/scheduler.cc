#include "xffl/submit/scheduler.h"

namespace xffl::submit {

std::string_view to_string(JobState state) {
  constexpr std::string_view kNames[] = {"unknown", "pending", "held",
                                         "running", "ended",   "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

std::string_view to_string(EndCause cause) {
  constexpr std::string_view kNames[] = {"ordinary", "infrastructure", "walltime", "out of memory"};
  return kNames[static_cast<size_t>(cause)];
}

}  // namespace xffl::submit
