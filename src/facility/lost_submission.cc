// Submitting and Searching: a submission whose answer was lost (a dropped connection, a time-out of
// the controller) may have created a job. The machine searches for the job by its name before it
// submits the script again; docs/operator/slurm.md has the measurements behind the rule.
#include "step_in_progress.h"

namespace xffl::facility {
namespace {

constexpr int kSearches = 2;  // searches without a job before a submission counts as lost

}  // namespace

bool StepInProgress::submission_is_unknown() const {
  return attempt_is_open() && attempt().submit_intended && attempt().job_id.empty();
}

int StepInProgress::count_unknown_submission() {
  if (!memory_.unknown_since) memory_.unknown_since = now_.time;
  return ++memory_.unknown_submissions;
}

void StepInProgress::on(Submitting&, const SubmitRejected& rejected) {
  // A job of an earlier submission may still appear.
  if (memory_.unknown_submissions > 0) record(history::CancelIntended{});
  close({.reason = rejected.reason, .counts_as_attempt = false, .fatal = true});
}

void StepInProgress::on(Submitting&, const SubmitDeferred& deferred) {
  link_.last_error = deferred.reason;
  memory_.unknown_since.reset();  // the scheduler answers: this is not an outage
  wait_ = backoff(policy_.seed, ++memory_.deferrals);
}

void StepInProgress::on(Submitting&, const SubmitUnknown& unknown) {
  link_.last_error = unknown.reason;
  wait_ = policy_.settle_time;
  if (count_unknown_submission() > 1)
    wait_ += backoff(policy_.seed, memory_.unknown_submissions - 1);
  enter(Searching{});
}

// A user paused the facility before a submission that is on record. After an unanswered submission,
// another search may still find a job.
std::optional<Action> StepInProgress::next(Submitting& submitting) {
  if (!paused_) return Submit{attempt().number};
  if (submitting.searched) enter(Searching{.empty_searches = kSearches - 1});
  return wait_for_user();
}

void StepInProgress::on(Searching& searching, const Found& found) {
  if (!found.jobs.empty())
    return adopt(found.jobs.front(), true, {found.jobs.begin() + 1, found.jobs.end()});
  if (++searching.empty_searches < kSearches)
    wait_ = policy_.settle_time;
  else
    enter(Submitting{.searched = true});
}

}  // namespace xffl::facility
