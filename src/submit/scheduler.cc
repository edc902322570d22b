#include "xffl/submit/scheduler.h"

namespace xffl::submit {

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::kUnknown:
      return "unknown";
    case JobState::kPending:
      return "pending";
    case JobState::kHeld:
      return "held";
    case JobState::kRunning:
      return "running";
    case JobState::kEnded:
      return "ended";
    case JobState::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

std::string_view to_string(EndCause cause) {
  switch (cause) {
    case EndCause::kOrdinary:
      return "ordinary";
    case EndCause::kInfrastructure:
      return "infrastructure";
    case EndCause::kWalltime:
      return "walltime";
    case EndCause::kOutOfMemory:
      return "out of memory";
  }
  return "ordinary";
}

}  // namespace xffl::submit
