#include "job_failure.h"

#include <algorithm>

namespace xffl::facility {

using submit::EndCause;
using submit::JobState;
using submit::JobStatus;

namespace {

bool is_twin(const history::Attempt& attempt) {
  return std::find(attempt.twins.begin(), attempt.twins.end(), attempt.job_id) !=
         attempt.twins.end();
}

AttemptFailure unreported_failure_of(const JobStatus& over, const history::Attempt& attempt) {
  const std::string word = over.native.empty() ? "" : " (" + over.native + ")";
  const std::string ended = "job " + attempt.job_id + " ended without a report" + word;
  if (over.state == JobState::kCancelled && is_twin(attempt))  // by xffl, as far as it knows
    return {.reason = ended, .charged = false};
  if (over.state == JobState::kCancelled)
    return {.reason = "job " + attempt.job_id + " was cancelled by somebody" + word,
            .charged = false,
            .pauses = true};
  if (over.state == JobState::kUnknown)
    return {.reason = "the scheduler no longer knows job " + attempt.job_id +
                      ", which has left no report",
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

AttemptFailure failure_of(const JobStatus& over, const history::Attempt& attempt,
                          const std::string& not_unpacked) {
  if (!not_unpacked.empty() && over.state == JobState::kEnded)
    return {.reason = "its job found the model that it was given damaged, which is sent again: " +
                      not_unpacked,
            .charged = false};
  AttemptFailure failure = unreported_failure_of(over, attempt);
  failure.unreported = true;
  return failure;
}

}  // namespace xffl::facility
