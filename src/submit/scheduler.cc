#include "xffl/submit/scheduler.h"

namespace xffl::submit {

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::kUnknown:
      return "unknown";
    case JobState::kPending:
      return "pending";
    case JobState::kRunning:
      return "running";
    case JobState::kEnded:
      return "ended";
    case JobState::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace xffl::submit
