// One facility's part of a round as a pure state machine:
//
//   step(policy, machine, event, now) -> machine, records, action
//
// The driver (FacilityDriver) appends the records to the history, durably and in order, performs
// the action, and hands the action's outcome to the next step() as an event. One action runs at a
// time. A restarted coordinator starts with the state from the history and the event Resumed; a
// kill may lose everything else in a FacilityMachine.
//
// The rules (docs/developer/state_machine.md has the diagram): a job that the scheduler does not
// know is not yet a finished job. Only a report is success. After a submission without an answer,
// the machine searches for the job twice, a settle time apart, before it submits the script again.
// The machine fences an attempt (takes its claim) before it records the failure and opens the next
// attempt.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/config/experiment.h"
#include "xffl/history/events.h"
#include "xffl/history/run_history.h"
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

using Nanoseconds = std::chrono::nanoseconds;

// A visitor of a variant: one lambda per type.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

// The policy of xffl.yaml with the facility's own poll_interval, and the settings of the facility's
// part of a round.
struct FacilityPolicy : config::RoundPolicy {
  std::chrono::milliseconds settle_time{0};
  std::optional<std::chrono::seconds> expected_training;  // of the previous round
  std::string seed;                                       // seeds the jitter of retries
  bool evaluates = false;                                 // the round only measures the last model
};

// The driver's inputs to a step besides the event.
struct Now {
  Nanoseconds time{0};  // monotonic
  // The round's first submission, at any facility; of an evaluation, the record of its plan.
  std::optional<Nanoseconds> since_first_submission;
  std::optional<Nanoseconds> since_quorum{};  // since the round has enough updates
  std::optional<std::string> paused;          // the reason why a user paused the facility
  std::optional<std::string> left{};          // the reason why the facility left the run at once
  // The reason why the facility's next job exceeds a budget (over_budget()).
  std::optional<std::string> over_budget{};
  bool paused_by_budget = false;  // `paused` is a budget's pause, and not a user's
};

// --- Actions ---------------------------------------------------------------------------------

// Brings the model and job.json to the facility.
struct Push {
  int attempt = 0;
};
// Submits the attempt's script.
struct Submit {
  int attempt = 0;
};
// Searches for jobs by the attempt's job name.
struct FindJobs {
  int attempt = 0;
};
// Checks for the report; without a report and with `ask_scheduler`, queries the scheduler. With
// `decides` the attempt ends when the scheduler does not know the job.
struct Poll {
  int attempt = 0;
  JobId job;
  bool ask_scheduler = false;
  bool decides = false;
};
// Fetches the update and verifies it.
struct FetchUpdate {
  int attempt = 0;
};
struct CancelJob {
  int attempt = 0;
  JobId job;
};
// Takes the attempt's claim, so that the attempt's job can no longer begin.
struct Fence {
  int attempt = 0;
};
struct Sleep {
  Nanoseconds duration{0};
};
// The facility's part of the round is over: known.accepted or known.missing is the result.
struct Finish {};
using Action =
    std::variant<Push, Submit, FindJobs, Poll, FetchUpdate, CancelJob, Fence, Sleep, Finish>;

// --- Events ----------------------------------------------------------------------------------

// The coordinator starts the facility's part, for the first time or after a restart.
struct Resumed {};
// Push succeeded.
struct Pushed {
  history::Pushed details;
};
// CancelJob or Fence succeeded.
struct Completed {};
// Submit created a job, or a kept allocation took the attempt.
struct Submitted {
  JobId job;
};
// The scheduler rejects the script permanently; no job exists.
struct SubmitRejected {
  std::string reason;
};
// The scheduler defers the submission, for example by a submit limit; no job exists.
struct SubmitDeferred {
  std::string reason;
};
// The coordinator lost the answer to a submission; a job may exist.
struct SubmitUnknown {
  std::string reason;
};
// The answer to FindJobs, oldest job first.
struct Found {
  std::vector<JobId> jobs;
};
// The answer to Poll.
struct Polled {
  bool reported = false;
  std::optional<submit::JobStatus> status;  // set when the driver has queried the scheduler
  std::string model_error{};                // the ended job's report of a damaged input model
};
// The update passed its checks.
struct Fetched {
  history::UpdateAccepted details;
};
// The update, or its report, failed its checks.
struct UpdateRejected {
  std::string reason;
};
// The job stopped ahead of its walltime and left a checkpoint.
struct Checkpointed {
  int64_t steps = 0;
};
// Sleep is over.
struct TimerFired {};
// The action failed or its answer was lost; the machine repeats the action.
struct Unreachable {
  std::string reason;
  uint64_t gained_bytes = 0;  // of a transfer: bytes newly in place, beyond earlier tries
};
// The action fails until a user renews a credential; the machine repeats the action.
struct AuthRequired {
  std::string reason;
};
using Event = std::variant<Resumed, Pushed, Completed, Submitted, SubmitRejected, SubmitDeferred,
                           SubmitUnknown, Found, Polled, Fetched, UpdateRejected, Checkpointed,
                           TimerFired, Unreachable, AuthRequired>;

// --- State -----------------------------------------------------------------------------------

// The failure of an attempt, which the machine records after it has taken the attempt's claim.
struct AttemptFailure {
  std::string reason;
  bool counts_as_attempt = true;     // towards max_attempts; false: towards rerun_budget
  int64_t steps = 0;                 // steps that a checkpoint holds
  bool fatal = false;                // another attempt would fail, too: give the facility up
  bool pauses_facility = false;      // a user cancelled the job: ask before the next attempt
  bool best_effort_cleanup = false;  // the facility gets one chance to answer each step
  bool final_poll = false;           // check for the report once more after the fence
  bool job_may_run = false;          // the scheduler does not know the job's end
};

// The job that the machine polls.
struct JobWatch {
  JobId job;
  std::optional<submit::JobStatus> status;  // the scheduler's last answer
  Nanoseconds since{0}, next_query{0};
  std::optional<Nanoseconds> running_since;
  int unknown_answers = 0;  // in a row
  Nanoseconds unknown_since{0};
};

// No attempt is open.
struct Idle {};
// The attempt is open; the submission is not on record yet.
struct Pushing {};
// The submission is on record, and no job of the attempt exists.
struct Submitting {
  bool searched = false;  // a search after an unanswered submission found no job
};
// A job may exist, and the machine searches for the job by its name: after the event SubmitUnknown,
// and after a restart between a submission and its answer.
struct Searching {
  int empty_searches = 0;  // in a row
};
// The job is on record and has not ended, as far as the scheduler knows.
struct Polling {
  JobWatch watch;
  std::vector<JobId> duplicates;  // jobs to cancel first; the claim lets only one job train
};
// The job has ended; its report may still appear on a shared file system.
struct Ended {
  JobWatch watch;
  submit::JobStatus status;  // the job's end
  bool grace_over = false;   // no report after the settle time: search for duplicate jobs
  std::string model_error;   // from Polled
  int late_answers = 0;      // searches that found the job although its status was unknown
};
// The facility has a report.
struct Fetching {};
enum class ClosingStep { kFence, kList, kCancel, kFinalPoll, kRecord };
// The attempt has failed. The machine fences the attempt and, where a cancellation is on record,
// lists and cancels the attempt's jobs. Then the machine may check for the report once more, and it
// records the failure.
struct Closing {
  std::optional<AttemptFailure> failure;  // none: on record, but not all jobs are cancelled
  ClosingStep step = ClosingStep::kFence;
  std::vector<JobId> jobs;  // jobs to cancel
};
// The update is accepted, or the facility is missing in this round.
struct Finished {};
using Phase =
    std::variant<Idle, Pushing, Submitting, Searching, Polling, Ended, Fetching, Closing, Finished>;

// The connection to the facility, in every phase.
struct Link {
  std::string last_error;  // the last action's error; empty: the facility answered
  bool auth_required = false;
  int failures = 0;  // consecutive actions without an answer or a gained byte
  Nanoseconds failing_since{0};
};

// Facts about the open attempt that outlive a phase.
struct AttemptMemory {
  int unknown_submissions = 0;               // submissions without an answer
  std::optional<Nanoseconds> unknown_since;  // the first since the scheduler's last answer
  int deferrals = 0;                         // submissions that the scheduler deferred, in a row
  std::set<JobId> watched;  // all jobs polled so far: two duplicates cannot alternate forever
  bool fenced = false;      // the claim is taken
};

struct FacilityMachine {
  history::FacilityState known;  // the state in the history
  Phase phase;
  Link link;
  AttemptMemory memory;
};

// An event for the history. The driver adds the facts that only the driver knows (nonces, hashes).
struct Record {
  int attempt = 0;
  history::Event event;
};

// One change of the phase within a step.
struct PhaseChange {
  std::string_view from, cause, to;  // names as in transitions()
};

struct Step {
  FacilityMachine machine;
  std::vector<Record> records;
  Action action;
  std::vector<PhaseChange> path;
};

/// Pure. Never throws while the events answer the actions given.
Step step(const FacilityPolicy& policy, FacilityMachine machine, const Event& event,
          const Now& now);

/// The prefix of describe() until a user renews a credential.
inline constexpr std::string_view kAuthPause = "paused: authentication needed";
/// The prefix of describe() while needs_user().
inline constexpr std::string_view kNeedsUser = "needs you";
/// True when the facility's errors repeat so often that a user probably has to act. The machine
/// nevertheless continues to retry.
bool needs_user(const FacilityMachine& machine);
/// A short description of the facility's activity for users: "pending (Priority)".
std::string describe(const FacilityMachine& machine);

// --- The table that step() dispatches from ---------------------------------------------------
//
// Tests check the table. A test compares the diagram in docs/developer/state_machine.md with the
// table, and rewrites the diagram with XFFL_ACCEPT=1.

// Causes of a phase change other than an event.
inline constexpr std::string_view kNextAction = "next action";  // the phase has nothing to wait for
inline constexpr std::string_view kTimeIsUp = "time is up";     // the deadline, or a long outage

struct Target {
  std::string_view phase;
  std::string_view when;  // for the diagram; may be empty
};

struct Transition {
  std::string_view phase;
  std::string_view cause;    // an event, kNextAction or kTimeIsUp
  std::vector<Target> next;  // possible next phases; empty: the phase stays
};

/// All pairs of a phase and an event with an effect. step() ignores the event in any other pair.
const std::vector<Transition>& transitions();

std::string_view name_of(const Phase& phase);
std::string_view name_of(const Event& event);
/// The names of all phases, in the order of the variant.
std::vector<std::string_view> phase_names();

// --- Time ------------------------------------------------------------------------------------

struct Deadline {
  Nanoseconds left{0};
  bool ends_attempts = false;  // policy.on_missing is not `wait`
  bool after_quorum = false;   // policy.quorum_grace ends earlier than policy.deadline
  bool has_passed() const { return left <= Nanoseconds(0); }
  bool is_up() const { return ends_attempts && has_passed(); }
};
/// The time left until the end of the round: policy.deadline after its first submission (of an
/// evaluation: after its plan), or policy.quorum_grace after its quorum, whichever is earlier. None
/// while neither counts. No other function evaluates these two keys.
std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now);

/// The pause before the next check for a report.
Nanoseconds report_interval(const FacilityPolicy& policy, Nanoseconds watched,
                            std::optional<Nanoseconds> running);
/// The pause before the next query of the scheduler.
Nanoseconds query_interval(const FacilityPolicy& policy, Nanoseconds watched, bool pending);
/// The pause before the n-th retry in a row: 5 s, doubling up to 15 min, minus a jitter by `seed`
/// of up to half the pause.
Nanoseconds backoff(std::string_view seed, int retry);

}  // namespace xffl::facility
