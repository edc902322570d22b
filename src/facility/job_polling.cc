// Polling and Ended: the machine polls the job until the job reports or ends. A job that the
// scheduler does not know is not yet a finished job, and only a report is success.
#include <algorithm>

#include "step_in_progress.h"

namespace xffl::facility {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using submit::EndCause;
using submit::JobState;
using submit::JobStatus;

constexpr int kUnknownAnswers = 3;  // before a job that the scheduler does not know counts as ended
constexpr int kMaxLateAnswers = 3;  // see Ended::late_answers

bool was_duplicate(const history::Attempt& attempt) {
  return std::find(attempt.duplicates.begin(), attempt.duplicates.end(), JobId(attempt.job_id)) !=
         attempt.duplicates.end();
}

AttemptFailure failure_without_report(const JobStatus& end, const history::Attempt& attempt) {
  const std::string words = end.stays_queued ? end.reason : end.native;
  const std::string state = words.empty() ? "" : " (" + words + ")";
  const std::string ended = "job " + attempt.job_id + " ended without a report" + state;
  if (end.state == JobState::kCancelled && was_duplicate(attempt))  // most likely by xffl
    return {.reason = ended, .counts_as_attempt = false};
  if (end.state == JobState::kCancelled)
    return {
        .reason = "job " + attempt.job_id + " was cancelled by a user or an administrator" + state,
        .counts_as_attempt = false,
        .pauses_facility = true};
  if (end.state == JobState::kUnknown)
    return {.reason =
                "the scheduler no longer knows job " + attempt.job_id + ", and there is no report",
            .counts_as_attempt = false,
            .job_may_run = true};
  switch (end.cause) {
    case EndCause::kInfrastructure:
    case EndCause::kWalltime:
      return {.reason = ended, .counts_as_attempt = false};
    case EndCause::kOutOfMemory:
      return {
          .reason = ended + ": it ran out of memory; ask for more in xffl.yaml, then `xffl run`",
          .fatal = true};
    case EndCause::kOrdinary:
      break;
  }
  return {.reason = ended};
}

AttemptFailure failure_of(const Ended& ended, const history::Attempt& attempt) {
  if (!ended.model_error.empty() && ended.status.state == JobState::kEnded)
    return {.reason = "its job found its input model damaged (the model is sent again): " +
                      ended.model_error,
            .counts_as_attempt = false};
  AttemptFailure failure = failure_without_report(ended.status, attempt);
  failure.final_poll = true;
  return failure;
}

enum class JobProgress { kAlive, kUnclear, kEnded };

// Updates `watch` with the scheduler's answer.
JobProgress progress_of(JobWatch& watch, const JobStatus& status, const FacilityPolicy& policy,
                        Nanoseconds time) {
  watch.status = status;
  watch.next_query =
      time + query_interval(policy, time - watch.since, status.state == JobState::kPending);
  switch (status.state) {
    case JobState::kRunning:
      if (!watch.running_since) watch.running_since = time;
      [[fallthrough]];
    case JobState::kPending:
    case JobState::kHeld:
      watch.unknown_answers = 0;
      return JobProgress::kAlive;
    case JobState::kUnknown:
      if (++watch.unknown_answers == 1) watch.unknown_since = time;
      if (watch.unknown_answers < kUnknownAnswers ||
          time - watch.unknown_since < 2 * policy.settle_time)
        return JobProgress::kUnclear;
      break;
    case JobState::kEnded:
    case JobState::kCancelled:
      break;
  }
  return JobProgress::kEnded;
}

}  // namespace

void StepInProgress::adopt(const JobId& job, bool adopted, std::vector<JobId> duplicates) {
  record(history::Submitted{.job_id = job, .adopted = adopted, .duplicates = duplicates});
  memory_.deferrals = 0;
  watch(job, std::move(duplicates));
}

void StepInProgress::watch(const JobId& job, std::vector<JobId> duplicates) {
  memory_.watched.insert(job);
  wait_ = Nanoseconds(0);
  enter(Polling{.watch = {.job = job,
                          .status = {},
                          .since = now_.time,
                          .next_query = now_.time,
                          .running_since = {}},
                .duplicates = std::move(duplicates)});
}

Nanoseconds StepInProgress::pause_of(const JobWatch& watch) const {
  std::optional<Nanoseconds> running;
  if (watch.running_since) running = now_.time - *watch.running_since;
  return report_interval(policy_, now_.time - watch.since, running);
}

void StepInProgress::on(Polling& polling, const Polled& polled) {
  if (polled.reported) return enter(Fetching{});
  JobWatch& watch = polling.watch;
  if (polled.status &&
      progress_of(watch, *polled.status, policy_, now_.time) == JobProgress::kEnded) {
    Ended ended{.watch = watch, .status = *polled.status, .model_error = polled.model_error};
    // The job's report of a damaged model replaces report.json. Without it, report.json may be late
    // on a shared file system.
    ended.grace_over = !polled.model_error.empty();
    if (!ended.grace_over) wait_ = policy_.settle_time;
    // An administrator may mend the node and release the job meanwhile.
    if (ended.status.stays_queued) wait_ = std::max(wait_, backoff(policy_.seed, attempt().number));
    return enter(std::move(ended));
  }
  wait_ = pause_of(watch);
}

// A duplicate job that the machine cannot cancel finds the claim taken.
void StepInProgress::on(Polling& polling, const Unreachable& unreachable) {
  if (polling.duplicates.empty()) return retry_later(unreachable);
  polling.duplicates.clear();
}

std::optional<Action> StepInProgress::next(Polling& polling) {
  const int number = attempt().number;
  if (!polling.duplicates.empty()) return CancelJob{number, polling.duplicates.front()};
  return Poll{number, polling.watch.job, now_.time >= polling.watch.next_query};
}

void StepInProgress::on(Ended& ended, const Polled& polled) {
  if (polled.reported) return enter(Fetching{});
  if (polled.status) switch (progress_of(ended.watch, *polled.status, policy_, now_.time)) {
      case JobProgress::kAlive: {  // the job was requeued
        wait_ = pause_of(ended.watch);
        return enter(Polling{.watch = JobWatch(ended.watch), .duplicates = {}});
      }
      case JobProgress::kEnded:
        ended.status = *polled.status;
        ended.grace_over = true;
        break;
      case JobProgress::kUnclear:
        wait_ = ended.watch.next_query - now_.time;
        break;
    }
  if (polled.model_error.empty()) return;
  ended.model_error = polled.model_error;
  ended.grace_over = true;
}

// A duplicate job of an attempt ends at once, because the first job holds the claim. The machine
// then polls the first job.
void StepInProgress::on(Ended& ended, const Found& found) {
  // The accounting knows the job since the last query: ask for its end once more.
  const bool is_known =
      std::find(found.jobs.begin(), found.jobs.end(), ended.watch.job) != found.jobs.end();
  if (is_known && ended.status.state == JobState::kUnknown &&
      ended.late_answers++ < kMaxLateAnswers) {
    ended.grace_over = false;
    wait_ = policy_.settle_time;
    return;
  }
  for (const JobId& job : found.jobs)
    if (!memory_.watched.contains(job)) return adopt(job, true, {});
  const AttemptFailure failure = failure_of(ended, attempt());
  // A scheduler that answers without a job may be wrong: the job must not train beside the next
  // one.
  if (ended.status.stays_queued || failure.job_may_run) record(history::CancelIntended{});
  close(failure);
}

std::optional<Action> StepInProgress::next(Ended& ended) {
  if (ended.grace_over) return FindJobs{attempt().number};
  return Poll{attempt().number, ended.watch.job, true, true};
}

// A check for the report is one stat at the facility and costs the scheduler nothing. A delay of a
// tenth of the time since the submission is short enough. Near the expected end (the previous
// round's duration) the delay is a quarter of the time left.
Nanoseconds report_interval(const FacilityPolicy& policy, Nanoseconds watched,
                            std::optional<Nanoseconds> running) {
  const Nanoseconds most = std::min<Nanoseconds>(policy.poll_interval, seconds(30));
  Nanoseconds interval = watched / 10;
  if (running && policy.expected_training) {
    const Nanoseconds left = Nanoseconds(*policy.expected_training) - *running;
    const Nanoseconds distance = left < Nanoseconds(0) ? -left : left;
    interval = std::min(interval, std::max<Nanoseconds>(distance / 4, seconds(1)));
  }
  return std::clamp<Nanoseconds>(interval, std::min<Nanoseconds>(most, milliseconds(200)), most);
}

// A wrong script fails soon after its submission, so the first queries are frequent. Sites ask for
// at most one query per poll interval. A job that has queued for an hour gets a fifth of the
// queries.
Nanoseconds query_interval(const FacilityPolicy& policy, Nanoseconds watched, bool pending) {
  const Nanoseconds usual = policy.poll_interval;
  if (pending && watched > minutes(60)) return 5 * usual;
  return std::clamp<Nanoseconds>(watched / 2, std::min<Nanoseconds>(usual, seconds(2)), usual);
}

}  // namespace xffl::facility
