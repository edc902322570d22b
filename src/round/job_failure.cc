#include "job_failure.h"

namespace xffl::round {

using submit::EndCause;
using submit::JobState;
using submit::JobStatus;

namespace {

AttemptFailure unreported_failure_of(const JobStatus& over, const JobId& job) {
  const std::string word = over.native.empty() ? "" : " (" + over.native + ")";
  const std::string ended = "job " + job.str() + " ended without a report" + word;
  if (over.state == JobState::kCancelled)
    return {.reason = "job " + job.str() + " was cancelled by somebody" + word,
            .charged = false,
            .pauses = true};
  if (over.state == JobState::kUnknown)
    return {
        .reason = "the scheduler no longer knows job " + job.str() + ", which has left no report",
        .charged = false};
  switch (over.cause) {
    case EndCause::kInfrastructure:
    case EndCause::kWalltime:
      return {.reason = ended, .charged = false};
    case EndCause::kOutOfMemory:
      return {.reason = ended + ": it ran out of memory; ask for more, or lower micro_batch_size",
              .gives_up = true};
    case EndCause::kOrdinary:
      break;
  }
  return {.reason = ended};
}

}  // namespace

AttemptFailure failure_of(const JobStatus& over, const JobId& job,
                          const std::string& not_unpacked) {
  if (!not_unpacked.empty() && over.state == JobState::kEnded)
    return {.reason = "its job found the model that it was given damaged, which is sent again: " +
                      not_unpacked,
            .charged = false};
  AttemptFailure failure = unreported_failure_of(over, job);
  failure.unreported = true;
  return failure;
}

}  // namespace xffl::round
