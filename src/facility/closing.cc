// Closing: the machine fences a failed attempt (takes its claim), cancels the attempt's jobs if a
// cancellation is on record, and may check for the report once more. Then the machine records the
// failure.
#include "step_in_progress.h"

namespace xffl::facility {
namespace {

// The cancellation stays on record, and a later round repeats it.
void give_up_cleanup(Closing& closing) {
  closing.jobs.clear();
  closing.step = ClosingStep::kRecord;
}

}  // namespace

void StepInProgress::close(AttemptFailure failure) {
  const bool may_have_job = attempt().submit_intended;
  enter(Closing{.failure = std::move(failure),
                .step = may_have_job ? ClosingStep::kFence : ClosingStep::kRecord,
                .jobs = {}});
}

void StepInProgress::on(Closing& closing, const Completed&) {
  if (closing.step == ClosingStep::kFence)
    memory_.fenced = true;
  else
    remove_first(closing.jobs);
}

void StepInProgress::on(Closing& closing, const Found& found) {
  closing.jobs = found.jobs;
  if (!attempt().job_id.empty()) closing.jobs.emplace_back(attempt().job_id);
  closing.step = ClosingStep::kCancel;
}

// The fence has refreshed the view of the attempt's folder: an existing report is visible now.
void StepInProgress::on(Closing& closing, const Polled& polled) {
  if (polled.reported) return enter(Fetching{});
  closing.step = ClosingStep::kRecord;
}

void StepInProgress::on(Closing& closing, const Unreachable& unreachable) {
  best_effort(closing) ? give_up_cleanup(closing) : retry_later(unreachable);
}

void StepInProgress::on(Closing& closing, const AuthRequired& required) {
  best_effort(closing) ? give_up_cleanup(closing) : wait_for_credential(required);
}

// The machine takes the claim first, so that no further job begins, and then cancels the jobs that
// have begun. After a kill between these actions, no further job can train.
std::optional<Action> StepInProgress::next(Closing& closing) {
  if (!closing.failure && paused_) return wait_for_user();
  const int number = attempt().number;
  if (closing.step == ClosingStep::kFence) {
    if (!memory_.fenced) return Fence{number};
    closing.step = ClosingStep::kList;
  }
  if (closing.step == ClosingStep::kList) {
    if (attempt().cancel_intended) return FindJobs{number};
    closing.step = ClosingStep::kFinalPoll;
  }
  if (closing.step == ClosingStep::kCancel) {
    if (!closing.jobs.empty()) return CancelJob{number, closing.jobs.front()};
    record(history::CancelConfirmed{});
    closing.step = ClosingStep::kFinalPoll;
  }
  if (closing.step == ClosingStep::kFinalPoll) {
    if (closing.failure && closing.failure->final_poll && !best_effort(closing))
      return Poll{number, JobId(attempt().job_id), false};
    closing.step = ClosingStep::kRecord;
  }
  record_failure(closing.failure);
  return std::nullopt;
}

// Takes `failure` by value, because the change of phase destroys the phase's copy.
void StepInProgress::record_failure(std::optional<AttemptFailure> failure) {
  if (!failure) return enter(Idle{});
  if (failure->pauses_facility) {  // first: no submission after a kill between the records
    records_.push_back({0, history::FacilityPaused{.reason = failure->reason}});
    paused_ = true;
  }
  record(history::AttemptFailed{.reason = failure->reason,
                                .counts_as_attempt = failure->counts_as_attempt,
                                .steps = failure->steps,
                                .output = {},
                                .usage = {},
                                .job_may_run = failure->job_may_run});
  forget_attempt();
  failure->fatal ? give_up(failure->reason) : enter(Idle{});
}

}  // namespace xffl::facility
