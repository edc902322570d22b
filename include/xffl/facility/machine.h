// One facility's part of a round as a pure state machine:
//
//   step(policy, machine, event, now) -> machine, records, action
//
// The driver (FacilityDriver) appends the records to the history, durably and in order, performs
// the action, and hands the action's outcome to the next step() as an event. One action runs at a
// time. A coordinator that was killed starts with the state that the history gives and the
// event Resumed; everything else in a FacilityMachine may be lost at any moment.
//
// The rules (docs/developer/state_machine.md has the diagram): an unknown job is never a finished
// one; a report alone is success; a job whose submission was not answered is searched twice, a
// settle time apart, before the script is submitted again; an attempt is fenced (its claim is
// taken) before its failure is recorded and the next attempt is opened.
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

// The policy of xffl.yaml, with the facility's own poll_interval, and settings of its part of a
// round.
struct FacilityPolicy : config::RoundPolicy {
  std::chrono::milliseconds settle_time{0};
  std::optional<std::chrono::seconds> expected_training;  // the duration of the previous round's
  std::string seed;                                       // of the jitter of retries
};

// The driver's view at the moment of a step.
struct Now {
  Nanoseconds time{0};                                // monotonic
  std::optional<Nanoseconds> since_first_submission;  // of the round, at any facility
  std::optional<std::string> paused;                  // the reason why a user paused the facility
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
// Checks for the report; without a report and with `ask_scheduler`, queries the scheduler.
struct Poll {
  int attempt = 0;
  JobId job;
  bool ask_scheduler = false;
};
// Fetches the update and verifies it.
struct FetchUpdate {
  int attempt = 0;
};
struct CancelJob {
  int attempt = 0;
  JobId job;
};
// Takes the attempt's claim: its job can no longer begin.
struct Fence {
  int attempt = 0;
};
struct Sleep {
  Nanoseconds duration{0};
};
// Nothing is left to do: known.accepted or known.missing is the result.
struct Finish {};
using Action =
    std::variant<Push, Submit, FindJobs, Poll, FetchUpdate, CancelJob, Fence, Sleep, Finish>;

// --- Events ----------------------------------------------------------------------------------

// The coordinator begins with the facility, for the first time or after a restart.
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
// The answer of a submission was lost: a job may exist.
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
  std::optional<submit::JobStatus> status;  // when the scheduler was asked
  std::string model_error{};                // the ended job's complaint about its input model
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
// The action failed or its answer was lost; the machine repeats it.
struct Unreachable {
  std::string reason;
  uint64_t gained_bytes = 0;  // of a transfer: in place now, beyond the earlier tries
};
// The same, until a user renews a credential.
struct AuthRequired {
  std::string reason;
};
using Event = std::variant<Resumed, Pushed, Completed, Submitted, SubmitRejected, SubmitDeferred,
                           SubmitUnknown, Found, Polled, Fetched, UpdateRejected, Checkpointed,
                           TimerFired, Unreachable, AuthRequired>;

// --- State -----------------------------------------------------------------------------------

// The failure of an attempt. It is recorded when the attempt's claim is taken.
struct AttemptFailure {
  std::string reason;
  bool counts_as_attempt = true;     // towards max_attempts; otherwise towards the re-run budget
  int64_t steps = 0;                 // done and kept in a checkpoint
  bool fatal = false;                // another attempt would fail, too: the facility is given up
  bool pauses_facility = false;      // a user cancelled the job: ask before the next attempt
  bool best_effort_cleanup = false;  // the facility gets one chance to answer each step
  bool final_poll = false;           // check for the report once more after the fence
};

// A job that is polled.
struct JobWatch {
  JobId job;
  std::optional<submit::JobStatus> status;  // the last answer
  Nanoseconds since{0}, next_query{0};
  std::optional<Nanoseconds> running_since;
  int unknown_answers = 0;  // in a row
  Nanoseconds unknown_since{0};
};

// No attempt is open.
struct Idle {};
// The attempt is open; the submission is not on record yet.
struct Pushing {};
// The submission is on record, and no job exists for certain.
struct Submitting {
  bool searched = false;  // an earlier submission was not answered, and no job of it was found
};
// A job may exist: it is searched by its name. (The phase after the event SubmitUnknown, and after
// a restart between a submission and its answer.)
struct Searching {
  int empty_searches = 0;  // in a row
};
// The job is on record and has not ended, as far as the scheduler knows.
struct Polling {
  JobWatch watch;
  std::vector<JobId> duplicates;  // to be cancelled first; the claim lets only one job train
};
// The job has ended; its report may still appear on a shared file system.
struct Ended {
  JobWatch watch;
  submit::JobStatus status;  // the job's end
  bool grace_over = false;   // no report after the settle time: search for duplicate jobs
  std::string model_error;   // of Polled
};
// A report was seen.
struct Fetching {};
enum class ClosingStep { kFence, kList, kCancel, kFinalPoll, kRecord };
// The attempt has failed: it is fenced, its jobs are listed and cancelled where a cancellation is
// on record, the report is checked for a last time; then the failure is recorded.
struct Closing {
  std::optional<AttemptFailure> failure;  // none: recorded, with jobs that are not cancelled yet
  ClosingStep step = ClosingStep::kFence;
  std::vector<JobId> jobs;  // to be cancelled
};
// The update is accepted, or the facility is missing in this round.
struct Finished {};
using Phase =
    std::variant<Idle, Pushing, Submitting, Searching, Polling, Ended, Fetching, Closing, Finished>;

// The connection to the facility, whatever the phase.
struct Link {
  std::string last_error;  // why the last action is repeated; empty: it was answered
  bool auth_required = false;
  int failures = 0;  // unanswered actions in a row, in which nothing was gained
  Nanoseconds failing_since{0};
};

// Facts about the open attempt that outlive a phase.
struct AttemptMemory {
  int unknown_submissions = 0;   // submissions without an answer
  Nanoseconds unknown_since{0};  // the first of them
  int deferrals = 0;             // submissions that the scheduler deferred, in a row
  std::set<JobId> watched;       // all jobs so far: two duplicates cannot alternate forever
  bool fenced = false;           // the claim is taken
};

struct FacilityMachine {
  history::FacilityState known;  // by the history
  Phase phase;
  Link link;
  AttemptMemory memory;
};

// An event for the history. The driver adds facts that only it knows (nonces, hashes).
struct Record {
  int attempt = 0;
  history::Event event;
};

// One change of the phase within a step.
struct PhaseChange {
  std::string_view from, cause, to;  // names of transitions()
};

struct Step {
  FacilityMachine machine;
  std::vector<Record> records;
  Action action;
  std::vector<PhaseChange> path;
};

/// Pure; never throws for any sequence of events that answers the actions given.
Step step(const FacilityPolicy& policy, FacilityMachine machine, const Event& event,
          const Now& now);

/// The begin of describe() while a credential has to be renewed.
inline constexpr std::string_view kAuthPause = "paused: authentication needed";
/// A short description of the facility's activity for users: "pending (Priority)".
std::string describe(const FacilityMachine& machine);

// --- The table that step() dispatches from ---------------------------------------------------
//
// Tests check it, and the diagram in docs/developer/state_machine.md is generated from it.

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
  std::vector<Target> next;  // phases that it may lead to; empty: the phase stays
};

/// All pairs of a phase and an event with an effect. In any other pair the event is ignored.
const std::vector<Transition>& transitions();

std::string_view name_of(const Phase& phase);
std::string_view name_of(const Event& event);
/// In the order of the variants.
std::vector<std::string_view> phase_names();

// --- Time ------------------------------------------------------------------------------------

struct Deadline {
  Nanoseconds left{0};
  bool ends_attempts = false;  // policy.on_missing is not `wait`
  bool has_passed() const { return left <= Nanoseconds(0); }
  bool is_up() const { return ends_attempts && has_passed(); }
};
/// The only evaluator of policy.deadline: the rest of the round's time; none when the policy has
/// none and before the round's first submission.
std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now);

/// The pause before the next check for a report.
Nanoseconds report_interval(const FacilityPolicy& policy, Nanoseconds watched,
                            std::optional<Nanoseconds> running);
/// The pause before the next query of the scheduler.
Nanoseconds query_interval(const FacilityPolicy& policy, Nanoseconds watched, bool pending);
/// The pause before the n-th retry in a row: 5 s, doubling up to 15 min, minus up to half of it by
/// `seed`.
Nanoseconds backoff(std::string_view seed, int retry);

}  // namespace xffl::facility
