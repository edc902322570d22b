// One facility's part of a round as a pure state machine: step(state, event) -> (state, records,
// action).
//
// The driver (FacilityDriver) appends the records to the journal, durably and in order, then does
// the action, and hands what came of it to the next step. One action is under way at a time. A
// coordinator that was killed builds the state again from the journal and goes on with Began: what
// is not in the journal (`Course::Volatile`) may be lost at any moment. tests/round/ replays tens
// of thousands of simulated federations through these functions.
//
// The rules are docs/operating.md's: unknown is never "finished", a report alone is success, a job
// whose submission is in doubt is looked for twice, a settle time apart, before another is
// submitted, and an attempt is fenced (its claim taken) before the next one is opened.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "xffl/base/json.h"
#include "xffl/base/names.h"
#include "xffl/history/events.h"
#include "xffl/history/run_state.h"
#include "xffl/submit/scheduler.h"

namespace xffl::facility {

using Nanoseconds = std::chrono::nanoseconds;

// What an experiment lays down for a facility's part of a round.
struct Rules {
  int max_attempts = 2;        // trainings that may fail by themselves
  int rerun_budget = 10;       // further ones after a node failure, pre-emption or the time limit
  bool waits_for_ever = true;  // policy.on_missing is wait: no deadline holds
  std::chrono::seconds deadline{0};               // from the round's first submission; 0: none
  std::chrono::milliseconds poll_interval{1000};  // between two questions to the scheduler
  std::chrono::milliseconds settle_time{0};
  std::chrono::seconds max_outage{7 * 24 * 3600};
  std::optional<std::chrono::seconds> expected_training;  // as long as the previous round took
  std::string seed;                                       // of the jitter of retries
};

// What the driver sees at the moment of a step.
struct Moment {
  Nanoseconds now{0};                                 // monotonic
  std::optional<Nanoseconds> since_first_submission;  // of the round, at any facility
  std::optional<std::string> paused;                  // by a person, and why
};

// --- Actions ---------------------------------------------------------------------------------

struct Push {
  int attempt = 0;
};  // model and job.json to the facility
struct Submit {
  int attempt = 0;
};  // the attempt's script
struct FindJobs {
  int attempt = 0;
};             // by the job's name
struct Look {  // for the report; then, if asked for, at the job's state
  int attempt = 0;
  JobId job;
  bool ask_scheduler = false;
};
struct FetchUpdate {
  int attempt = 0;
};  // and check it
struct CancelJob {
  int attempt = 0;
  JobId job;
};
struct Fence {
  int attempt = 0;
};  // take the attempt's claim: its job can no longer begin
struct Sleep {
  Nanoseconds duration{0};
};
struct Finish {};  // the facility's part is over: known.accepted or known.missing says how
using Action =
    std::variant<Push, Submit, FindJobs, Look, FetchUpdate, CancelJob, Fence, Sleep, Finish>;

// --- Events ----------------------------------------------------------------------------------

struct Began {};  // the first step, also after a restart
struct Completed {
  Json details = Json::object();
};  // Push, CancelJob or Fence did what it says
struct Submitted {
  JobId job;
};
struct Refused {
  std::string why;
};  // Submit: for good, no job exists
struct Postponed {
  std::string why;
};  // Submit: not now, no job exists
struct InDoubt {
  std::string why;
};  // Submit: a job may exist
struct Found {
  std::vector<JobId> jobs;
};
struct Looked {
  bool reported = false;
  std::optional<submit::JobStatus> status;  // when the scheduler was asked
  std::string not_unpacked{};  // why the job, which has ended, could not begin with its model
};
struct Fetched {
  history::Accepted accepted;
  Json details;
};
struct UpdateRefused {
  std::string why;
};
struct ToBeContinued {
  int64_t steps = 0;
};  // stopped ahead of its walltime, with a checkpoint
struct Woke {};
struct Unreachable {
  std::string why;
  uint64_t gained_bytes = 0;  // of a transfer: found in place now, and not by the tries before
};                            // the action's effect is unknown; it may be done again
struct NeedsPerson {
  std::string why;
};  // the same, until somebody renews a credential
using Event = std::variant<Began, Completed, Submitted, Refused, Postponed, InDoubt, Found, Looked,
                           Fetched, UpdateRefused, ToBeContinued, Woke, Unreachable, NeedsPerson>;

// --- State -----------------------------------------------------------------------------------

// An attempt that has failed; its claim is taken before it is recorded.
struct AttemptFailure {
  std::string reason;
  bool charged = true;      // counts against max_attempts, not against the re-run budget
  int64_t steps = 0;        // done and kept in a checkpoint
  bool gives_up = false;    // no further attempt would help
  bool pauses = false;      // a person ended the job: ask before another one
  bool hurries = false;     // the facility gets one chance to hear of it
  bool unreported = false;  // its report is looked for once more when its claim is taken
};

struct Course {
  history::FacilityState known;  // what the journal says

  // What a restart forgets.
  struct Volatile {
    Action doing = Finish{};  // under way
    Nanoseconds rest{0};      // before the next action
    // The link.
    std::string trouble;  // why a retry or a person is waited for; "" when all is well
    bool needs_person = false;
    int failures = 0;  // in a row, without anything gained
    Nanoseconds failing_since{0};
    // The submission.
    bool submitting = false;  // no job exists yet, for certain: the script may be submitted
    int empty_looks = 0;      // FindJobs that found nothing, in a row
    int postponements = 0;    // of the submission, in a row
    int doubts = 0;
    Nanoseconds doubting_since{0};
    std::vector<JobId> twins;  // to be cancelled for courtesy: the claim lets only one job train
    // The job that is watched.
    std::set<JobId> watched;  // all so far, so that two twins cannot take turns for ever
    std::optional<submit::JobStatus> status;  // the last answer
    Nanoseconds watched_since{0}, next_question{0};
    std::optional<Nanoseconds> running_since;
    int unknown_answers = 0;
    Nanoseconds unknown_since{0};
    bool reported = false;
    std::optional<submit::JobStatus> over;  // it has ended, and no report was seen so far
    bool settled = false;                   // ... nor after the settle time
    std::string not_unpacked;               // ... because it could not begin with its model
    // The end of an attempt.
    std::optional<AttemptFailure> failing;
    bool fenced = false;
    bool skipped = false;      // ... the courtesies: the facility does not answer
    bool jobs_listed = false;  // those to be cancelled are in `twins`
  } now;
};

// A journal event of this facility: the driver adds what only it knows (nonces, hashes).
struct Record {
  std::string kind;
  int attempt = 0;
  Json payload = Json::object();
};

struct Step {
  Course course;
  std::vector<Record> records;
  Action action;
};

/// Pure; never throws for any sequence of events that answers the actions given.
Step step(const Rules& rules, Course course, const Event& event, const Moment& moment);

/// What the facility is doing, in a few words for people: "pending (Priority)".
std::string describe(const Course& course);

/// Until the round's deadline; none where none holds.
std::optional<Nanoseconds> deadline_left(const Rules& rules, const Moment& moment);
/// How long until the next look for a report, and until the next question to the scheduler.
Nanoseconds look_interval(const Rules& rules, Nanoseconds watched,
                          std::optional<Nanoseconds> running);
Nanoseconds question_interval(const Rules& rules, Nanoseconds watched, bool pending);
/// Of the n-th retry in a row: 5 s doubling up to 15 min, minus up to half of it by `seed`.
Nanoseconds backoff(std::string_view seed, int retry);

}  // namespace xffl::facility
