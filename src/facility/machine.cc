// How it works: a step has two halves. The event goes to the handler of its pair (phase, event) in
// the table at the end of this file; handlers change the phase and add records. Then next() of the
// phase returns its next action, or enters another phase. Before each next(), time_is_up() ends an
// attempt past its limit. The records hold everything that a restart needs, so that Resumed finds
// the phase again.
#include "xffl/facility/machine.h"

#include <algorithm>
#include <array>

#include "xffl/base/log.h"
#include "xffl/base/sha256.h"

namespace xffl::facility {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using submit::EndCause;
using submit::JobState;
using submit::JobStatus;

constexpr int kSearches = 2;        // that find no job, before a submission counts as lost
constexpr int kUnknownAnswers = 3;  // before a job that the scheduler does not know counts as ended
constexpr seconds kAuthInterval{5};

// --- Classification ---------------------------------------------------------------------------

bool was_duplicate(const history::Attempt& attempt) {
  return std::find(attempt.duplicates.begin(), attempt.duplicates.end(), JobId(attempt.job_id)) !=
         attempt.duplicates.end();
}

AttemptFailure failure_without_report(const JobStatus& end, const history::Attempt& attempt) {
  const std::string state = end.native.empty() ? "" : " (" + end.native + ")";
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
            .counts_as_attempt = false};
  switch (end.cause) {
    case EndCause::kInfrastructure:
    case EndCause::kWalltime:
      return {.reason = ended, .counts_as_attempt = false};
    case EndCause::kOutOfMemory:
      return {.reason = ended + ": it ran out of memory; ask for more, or lower micro_batch_size",
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

// The reason why there is no further attempt; none: there is one. Attempts before the last `xffl
// run` do not count, nor do attempts that another attempt continued.
std::optional<std::string> spent_budget(const FacilityPolicy& policy,
                                        const history::FacilityState& known) {
  int counted = 0, reruns = 0;
  int64_t most_steps = 0;
  for (const history::Attempt& attempt : known.attempts) {
    const bool advanced = attempt.steps > most_steps;  // such a training may take many jobs
    most_steps = std::max(most_steps, attempt.steps);
    if (attempt.number <= known.attempts_before_resume || advanced) continue;
    ++(attempt.counts_as_attempt ? counted : reruns);
  }
  const auto spent = [&](const std::string& budget) {
    return "no attempt left (" + budget + "); the last one: " + *known.attempts.back().failure;
  };
  if (counted >= policy.max_attempts)
    return spent("policy.max_attempts is " + std::to_string(policy.max_attempts));
  if (reruns > policy.rerun_budget)
    return spent("policy.rerun_budget is " + std::to_string(policy.rerun_budget));
  return std::nullopt;
}

enum class JobProgress { kAlive, kUnclear, kEnded };

// Takes the scheduler's answer into `watch`.
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

// With its repetitions.
void remove_first(std::vector<JobId>& jobs) {
  if (!jobs.empty()) std::erase(jobs, JobId(jobs.front()));
}

// --- One step ---------------------------------------------------------------------------------

class StepInProgress {
 public:
  StepInProgress(const FacilityPolicy& policy, FacilityMachine machine, const Now& now)
      : policy_(policy),
        machine_(std::move(machine)),
        known_(machine_.known),
        link_(machine_.link),
        memory_(machine_.memory),
        now_(now),
        paused_(now.paused.has_value()) {}

  Step run(const Event& event);

  // --- Idle ---

  void on(Idle&, const Resumed&) {
    if (known_.accepted || known_.missing) return enter(Finished{});
    if (!attempt_is_open()) return;
    const bool unknown = submission_is_unknown();
    if (unknown) {  // it was under way when the coordinator ended: let it arrive
      count_unknown_submission();
      wait_ = policy_.settle_time;
    }
    // The job ends because this run cancelled it, and not a user.
    if (attempt().cancel_intended)
      return close({.reason = "its cancellation had begun", .counts_as_attempt = false});
    if (unknown) return enter(Searching{});
    if (attempt().job_id.empty()) return enter(Pushing{});
    watch(JobId(attempt().job_id), {});
  }
  std::optional<Action> next(Idle&) {
    if (paused_) return wait_for_user();
    if (!known_.attempts.empty() && attempt().cancel_intended)
      enter(Closing{});
    else
      open_attempt();
    return std::nullopt;
  }

  // --- Pushing ---

  void on(Pushing&, const Pushed& pushed) { record(pushed.details); }
  std::optional<Action> next(Pushing&) {
    if (paused_) return wait_for_user();
    if (!attempt().pushed) return Push{attempt().number};
    record(history::SubmitIntended{});
    enter(Submitting{});
    return std::nullopt;
  }

  // --- Submitting ---

  void on(Submitting&, const Submitted& submitted) { adopt(submitted.job, false, {}); }
  void on(Submitting&, const SubmitRejected& rejected) {
    // A job of an earlier submission may still appear.
    if (memory_.unknown_submissions > 0) record(history::CancelIntended{});
    close({.reason = rejected.reason, .counts_as_attempt = false, .fatal = true});
  }
  void on(Submitting&, const SubmitDeferred& deferred) {
    link_.last_error = deferred.reason;
    wait_ = backoff(policy_.seed, ++memory_.deferrals);
  }
  void on(Submitting&, const SubmitUnknown& unknown) {
    link_.last_error = unknown.reason;
    wait_ = policy_.settle_time;
    if (count_unknown_submission() > 1)
      wait_ += backoff(policy_.seed, memory_.unknown_submissions - 1);
    enter(Searching{});
  }
  // A user paused the facility ahead of a submission that is on record. After a submission without
  // an answer another search may still find a job.
  std::optional<Action> next(Submitting& submitting) {
    if (!paused_) return Submit{attempt().number};
    if (submitting.searched) enter(Searching{.empty_searches = kSearches - 1});
    return wait_for_user();
  }

  // --- Searching ---

  void on(Searching& searching, const Found& found) {
    if (!found.jobs.empty())
      return adopt(found.jobs.front(), true, {found.jobs.begin() + 1, found.jobs.end()});
    if (++searching.empty_searches < kSearches)
      wait_ = policy_.settle_time;
    else
      enter(Submitting{.searched = true});
  }
  std::optional<Action> next(Searching&) { return FindJobs{attempt().number}; }

  // --- Polling ---

  void on(Polling& polling, const Polled& polled) {
    if (polled.reported) return enter(Fetching{});
    JobWatch& watch = polling.watch;
    if (polled.status &&
        progress_of(watch, *polled.status, policy_, now_.time) == JobProgress::kEnded) {
      Ended ended{.watch = watch, .status = *polled.status, .model_error = polled.model_error};
      // The job's complaint replaces its report. Without one, the report may be late on a shared
      // file system.
      ended.grace_over = !polled.model_error.empty();
      if (!ended.grace_over) wait_ = policy_.settle_time;
      return enter(std::move(ended));
    }
    wait_ = pause_of(watch);
  }
  void on(Polling& polling, const Completed&) { remove_first(polling.duplicates); }
  // A duplicate job that cannot be cancelled finds the claim taken.
  void on(Polling& polling, const Unreachable& unreachable) {
    if (polling.duplicates.empty()) return retry_later(unreachable);
    polling.duplicates.clear();
  }
  std::optional<Action> next(Polling& polling) {
    const int number = attempt().number;
    if (!polling.duplicates.empty()) return CancelJob{number, polling.duplicates.front()};
    return Poll{number, polling.watch.job, now_.time >= polling.watch.next_query};
  }

  // --- Ended ---

  void on(Ended& ended, const Polled& polled) {
    if (polled.reported) return enter(Fetching{});
    if (polled.status) switch (progress_of(ended.watch, *polled.status, policy_, now_.time)) {
        case JobProgress::kAlive: {  // requeued
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
  // A duplicate start of an attempt leaves at once, because the first one, which is the job, holds
  // the claim.
  void on(Ended& ended, const Found& found) {
    for (const JobId& job : found.jobs)
      if (!memory_.watched.contains(job)) return adopt(job, true, {});
    close(failure_of(ended, attempt()));
  }
  std::optional<Action> next(Ended& ended) {
    if (ended.grace_over) return FindJobs{attempt().number};
    return Poll{attempt().number, ended.watch.job, true};
  }

  // --- Fetching ---

  void on(Fetching&, const Fetched& fetched) {
    record(fetched.details);
    enter(Finished{});
  }
  void on(Fetching&, const UpdateRejected& rejected) {
    // The same job on the same data would most likely give the same update.
    close({.reason = "its update was rejected: " + rejected.reason, .fatal = true});
  }
  void on(Fetching&, const Checkpointed& stopped) {
    close({.reason = "stopped ahead of its walltime after " + std::to_string(stopped.steps) +
                     " steps, to be continued",
           .counts_as_attempt = false,
           .steps = stopped.steps});
  }
  std::optional<Action> next(Fetching&) { return FetchUpdate{attempt().number}; }

  // --- Closing ---

  void on(Closing& closing, const Completed&) {
    if (closing.step == ClosingStep::kFence)
      memory_.fenced = true;
    else
      remove_first(closing.jobs);
  }
  void on(Closing& closing, const Found& found) {
    closing.jobs = found.jobs;
    if (!attempt().job_id.empty()) closing.jobs.emplace_back(attempt().job_id);
    closing.step = ClosingStep::kCancel;
  }
  // The fence has refreshed the view of the attempt's folder: an existing report is visible now.
  void on(Closing& closing, const Polled& polled) {
    if (polled.reported) return enter(Fetching{});
    closing.step = ClosingStep::kRecord;
  }
  void on(Closing& closing, const Unreachable& unreachable) {
    best_effort(closing) ? give_up_cleanup(closing) : retry_later(unreachable);
  }
  void on(Closing& closing, const AuthRequired& required) {
    best_effort(closing) ? give_up_cleanup(closing) : wait_for_credential(required);
  }
  // Once the claim is taken no job begins; jobs that began before are cancelled after. A
  // coordinator that is killed between the two leaves nothing that could still train.
  std::optional<Action> next(Closing& closing) {
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

  // --- Finished ---

  std::optional<Action> next(Finished&) { return Finish{}; }

  // --- Every phase ---

  template <class AnyPhase>
  void on(AnyPhase&, const TimerFired&) {}
  template <class AnyPhase>
  void on(AnyPhase&, const Unreachable& unreachable) {
    retry_later(unreachable);
  }
  template <class AnyPhase>
  void on(AnyPhase&, const AuthRequired& required) {
    wait_for_credential(required);
  }

 private:
  // --- The link ---

  void retry_later(const Unreachable& unreachable) {
    // Bytes that an earlier try has left count: the link is bad, not down.
    if (unreachable.gained_bytes > 0) link_.failures = 0;
    if (++link_.failures == 1) link_.failing_since = now_.time;
    link_.last_error = unreachable.reason;
    link_.auth_required = false;
    wait_ = backoff(policy_.seed, link_.failures);
  }
  void wait_for_credential(const AuthRequired& required) {
    link_.last_error = required.reason;
    link_.auth_required = true;
    no_outage();
    wait_ = std::min<Nanoseconds>(policy_.poll_interval, kAuthInterval);
  }
  Action wait_for_user() {
    no_outage();
    return sleep(policy_.poll_interval);
  }
  // The machine waits for a user, and not for the facility.
  void no_outage() {
    link_.failures = 0;
    memory_.unknown_since = now_.time;
  }
  Sleep sleep(Nanoseconds duration) const {
    const auto limit = deadline(policy_, now_);
    if (limit && limit->ends_attempts && !limit->has_passed())
      duration = std::min(duration, limit->left);
    return {std::max(duration, Nanoseconds(1))};
  }

  // --- The attempt ---

  const history::Attempt& attempt() const { return known_.attempts.back(); }
  bool attempt_is_open() const { return !known_.attempts.empty() && !attempt().failure; }
  bool submission_is_unknown() const {
    return attempt_is_open() && attempt().submit_intended && attempt().job_id.empty();
  }
  int count_unknown_submission() {
    if (++memory_.unknown_submissions == 1) memory_.unknown_since = now_.time;
    return memory_.unknown_submissions;
  }

  void enter(Phase phase) {
    path_.push_back({name_of(machine_.phase), cause_, name_of(phase)});
    machine_.phase = std::move(phase);
  }
  void record(history::Event event) { record(attempt().number, std::move(event)); }
  void record(int number, history::Event event) {
    apply(known_, number, event);
    records_.push_back({number, std::move(event)});
  }

  void open_attempt() {
    if (const auto spent = spent_budget(policy_, known_)) return give_up(*spent);
    const int number = known_.attempts.empty() ? 1 : attempt().number + 1;
    forget_attempt();
    record(number, history::AttemptOpened{});
    enter(Pushing{});
  }
  void adopt(const JobId& job, bool adopted, std::vector<JobId> duplicates) {
    record(history::Submitted{.job_id = job, .adopted = adopted, .duplicates = duplicates});
    memory_.deferrals = 0;
    watch(job, std::move(duplicates));
  }
  void watch(const JobId& job, std::vector<JobId> duplicates) {
    memory_.watched.insert(job);
    wait_ = Nanoseconds(0);
    enter(Polling{.watch = {.job = job,
                            .status = {},
                            .since = now_.time,
                            .next_query = now_.time,
                            .running_since = {}},
                  .duplicates = std::move(duplicates)});
  }
  Nanoseconds pause_of(const JobWatch& watch) const {
    std::optional<Nanoseconds> running;
    if (watch.running_since) running = now_.time - *watch.running_since;
    return report_interval(policy_, now_.time - watch.since, running);
  }

  void close(AttemptFailure failure) {
    const bool may_have_job = attempt().submit_intended;
    enter(Closing{.failure = std::move(failure),
                  .step = may_have_job ? ClosingStep::kFence : ClosingStep::kRecord,
                  .jobs = {}});
  }
  static bool best_effort(const Closing& closing) {
    return closing.failure && closing.failure->best_effort_cleanup;
  }
  // The cancellation stays on record, and a later round repeats it.
  static void give_up_cleanup(Closing& closing) {
    closing.jobs.clear();
    closing.step = ClosingStep::kRecord;
  }
  // By value: the phase changes.
  void record_failure(std::optional<AttemptFailure> failure) {
    if (!failure) return enter(Idle{});
    if (failure->pauses_facility) {  // first: a kill between the two must not lead to a submission
      records_.push_back({0, history::FacilityPaused{.reason = failure->reason}});
      paused_ = true;
    }
    record(history::AttemptFailed{.reason = failure->reason,
                                  .counts_as_attempt = failure->counts_as_attempt,
                                  .steps = failure->steps,
                                  .output = {}});
    forget_attempt();
    failure->fatal ? give_up(failure->reason) : enter(Idle{});
  }
  void give_up(const std::string& reason) {
    record(0, history::FacilityMissing{.reason = reason});
    link_ = {};
    enter(Finished{});
  }
  void forget_attempt() {
    link_ = {};
    memory_ = {};
  }

  // --- Time ---

  // The deadline and the longest outage hold in every phase, with three exceptions: a job's report
  // is checked for once more, a report that was seen is fetched, and a failed attempt is closed.
  // Then only a failure of these actions is not repeated.
  bool time_may_end_it(const Event& event) const {
    const bool no_answer =
        std::holds_alternative<Unreachable>(event) || std::holds_alternative<AuthRequired>(event);
    const bool nothing_new =
        std::holds_alternative<TimerFired>(event) || std::holds_alternative<Resumed>(event);
    return std::visit(
        Overloaded{[&](const Closing& closing) {
                     return !closing.failure || (no_answer && !best_effort(closing));
                   },
                   [&](const Fetching&) { return no_answer; },
                   [&](const Polling&) { return !nothing_new; },
                   [&](const Ended&) { return !nothing_new; },
                   [](const Finished&) { return false; }, [](const auto&) { return true; }},
        machine_.phase);
  }
  std::optional<std::string> time_is_up() const {
    const std::string outage = std::to_string(policy_.max_outage.count()) + " s";
    const auto limit = deadline(policy_, now_);
    if (limit && limit->ends_attempts && limit->has_passed())
      return "no update before the round's deadline of " +
             std::to_string(policy_.deadline.count()) + " s" +
             (link_.last_error.empty() ? "" : ": " + link_.last_error);
    if (link_.failures > 0 && now_.time - link_.failing_since > policy_.max_outage)
      return "not reachable for " + outage + ": " + link_.last_error;
    if (submission_is_unknown() && memory_.unknown_submissions > 1 &&
        now_.time - memory_.unknown_since > policy_.max_outage)
      return "its scheduler answered no submission for " + outage + ": " + link_.last_error;
    return std::nullopt;
  }
  void end_for_time(const std::string& reason) {
    wait_ = Nanoseconds(0);
    auto* closing = std::get_if<Closing>(&machine_.phase);
    if (!attempt_is_open()) return give_up(reason);
    if (closing) {
      closing->failure->reason += "; " + reason;
      if (closing->step == ClosingStep::kFinalPoll) closing->step = ClosingStep::kList;
    } else {
      close({.reason = reason});
      closing = &std::get<Closing>(machine_.phase);
    }
    closing->failure->fatal = closing->failure->best_effort_cleanup = true;
    if (attempt().submit_intended && !attempt().cancel_intended) record(history::CancelIntended{});
  }

  void update_link(const Event& event) {
    std::visit(Overloaded{[](const Unreachable&) {}, [](const AuthRequired&) {},
                          [](const TimerFired&) {}, [&](const auto&) { link_ = {}; }},
               event);
  }

  const FacilityPolicy& policy_;
  FacilityMachine machine_;
  history::FacilityState& known_;
  Link& link_;
  AttemptMemory& memory_;
  const Now& now_;
  bool paused_;
  Nanoseconds wait_{0};  // before the next action
  std::vector<Record> records_;
  std::string_view cause_;
  std::vector<PhaseChange> path_;
};

// --- The table --------------------------------------------------------------------------------

constexpr std::array<std::string_view, std::variant_size_v<Phase>> kPhases = {
    "Idle",  "Pushing",  "Submitting", "Searching", "Polling",
    "Ended", "Fetching", "Closing",    "Finished"};
constexpr std::array<std::string_view, std::variant_size_v<Event>> kEvents = {
    "Resumed",        "Pushed",        "Completed",  "Submitted",   "SubmitRejected",
    "SubmitDeferred", "SubmitUnknown", "Found",      "Polled",      "Fetched",
    "UpdateRejected", "Checkpointed",  "TimerFired", "Unreachable", "AuthRequired"};

using Handler = void (*)(StepInProgress&, Phase&, const Event&);
struct Row : Transition {
  Handler handler = nullptr;  // of an event
};

template <class ToPhase>
Target to(std::string_view when = "") {
  return {name_of(Phase(ToPhase{})), when};
}
template <class AtPhase, class OnEvent>
Row on(std::vector<Target> next = {}) {
  return {{name_of(Phase(AtPhase{})), name_of(Event(OnEvent{})), std::move(next)},
          [](StepInProgress& step, Phase& phase, const Event& event) {
            step.on(std::get<AtPhase>(phase), std::get<OnEvent>(event));
          }};
}
template <class AtPhase>
Row moves(std::string_view cause, std::vector<Target> next) {
  return {{name_of(Phase(AtPhase{})), cause, std::move(next)}};
}

// Adds the rows of the phases whose actions are repeated after a pause.
template <class... Phases>
std::vector<Row> with_repeats(std::vector<Row> rows) {
  (rows.insert(rows.end(),
               {on<Phases, Unreachable>(), on<Phases, AuthRequired>(), on<Phases, TimerFired>()}),
   ...);
  return rows;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows =
      with_repeats<Pushing, Submitting, Searching, Polling, Ended, Fetching, Closing>({
          on<Idle, Resumed>({to<Pushing>("pushing"), to<Searching>("submitting"),
                             to<Polling>("job"), to<Closing>("cancelling"), to<Finished>("done")}),
          on<Idle, TimerFired>(),
          moves<Idle>(kNextAction, {to<Pushing>("opens an attempt"), to<Closing>("jobs to cancel"),
                                    to<Finished>("no attempt left")}),
          moves<Idle>(kTimeIsUp, {to<Finished>()}),

          on<Pushing, Pushed>(),
          moves<Pushing>(kNextAction, {to<Submitting>("pushed")}),
          moves<Pushing>(kTimeIsUp, {to<Closing>()}),

          on<Submitting, Submitted>({to<Polling>()}),
          on<Submitting, SubmitRejected>({to<Closing>()}),
          on<Submitting, SubmitDeferred>(),
          on<Submitting, SubmitUnknown>({to<Searching>()}),
          moves<Submitting>(kNextAction, {to<Searching>("paused after a search")}),
          moves<Submitting>(kTimeIsUp, {to<Closing>()}),

          on<Searching, Found>({to<Polling>("a job"), to<Submitting>("none, twice")}),
          moves<Searching>(kTimeIsUp, {to<Closing>()}),

          on<Polling, Polled>({to<Fetching>("report"), to<Ended>("job ended")}),
          on<Polling, Completed>(),
          moves<Polling>(kTimeIsUp, {to<Closing>()}),

          on<Ended, Polled>({to<Fetching>("report"), to<Polling>("requeued")}),
          on<Ended, Found>({to<Polling>("a duplicate"), to<Closing>("no duplicate")}),
          moves<Ended>(kTimeIsUp, {to<Closing>()}),

          on<Fetching, Fetched>({to<Finished>()}),
          on<Fetching, UpdateRejected>({to<Closing>()}),
          on<Fetching, Checkpointed>({to<Closing>()}),
          moves<Fetching>(kTimeIsUp, {to<Closing>()}),

          on<Closing, Completed>(),
          on<Closing, Found>(),
          on<Closing, Polled>({to<Fetching>("report")}),
          moves<Closing>(kNextAction,
                         {to<Idle>("failure recorded"), to<Finished>("fatal failure")}),
          moves<Closing>(kTimeIsUp, {to<Finished>()}),
      });
  return kRows;
}

Handler handler_of(const Phase& phase, const Event& event) {
  for (const Row& row : rows())
    if (row.handler && row.phase == name_of(phase) && row.cause == name_of(event))
      return row.handler;
  return nullptr;
}

Step StepInProgress::run(const Event& event) {
  update_link(event);
  cause_ = name_of(event);
  if (const Handler handler = handler_of(machine_.phase, event))
    handler(*this, machine_.phase, event);
  for (;;) {
    if (time_may_end_it(event))
      if (const auto reason = time_is_up()) {
        cause_ = kTimeIsUp;
        end_for_time(*reason);
      }
    cause_ = kNextAction;
    std::optional<Action> action;
    if (wait_ > Nanoseconds(0))
      action = sleep(wait_);
    else
      action = std::visit([&](auto& phase) { return next(phase); }, machine_.phase);
    if (action)
      return {std::move(machine_), std::move(records_), *std::move(action), std::move(path_)};
  }
}

// --- Text -------------------------------------------------------------------------------------

std::string text_of(seconds duration) {
  const auto count = duration.count();
  if (count < 120) return std::to_string(count) + " s";
  if (count < 7200) return std::to_string(count / 60) + " min";
  return std::to_string(count / 3600) + " h";
}

std::string text_of(const std::optional<JobStatus>& status) {
  if (!status) return "submitted";
  std::string text(submit::to_string(status->state));
  const std::string& why = status->reason.empty() ? status->native : status->reason;
  if (!why.empty() && why != text) text += " (" + log::printable(why, 100) + ")";
  if (status->state == JobState::kPending && status->starts_in)
    text += ", starts in " + text_of(*status->starts_in);
  if (status->state == JobState::kRunning && status->ends_in)
    text += ", time limit in " + text_of(*status->ends_in);
  return text;
}

std::string text_of(const FacilityMachine& machine) {
  return std::visit(Overloaded{
                        [](const Idle&) -> std::string { return "not started"; },
                        [&](const Pushing&) -> std::string {
                          return machine.known.attempts.back().pushed ? "pushed" : "pushing";
                        },
                        [](const Submitting&) -> std::string { return "submitting"; },
                        [](const Searching&) -> std::string { return "submission unknown"; },
                        [](const Polling& polling) { return text_of(polling.watch.status); },
                        [](const Ended& ended) { return text_of(ended.watch.status); },
                        [](const Fetching&) -> std::string { return "fetching"; },
                        [](const Closing& closing) -> std::string {
                          if (!closing.failure) return "cancelling the last attempt's jobs";
                          return "ending the attempt (" +
                                 log::printable(closing.failure->reason, 300) + ")";
                        },
                        [&](const Finished&) -> std::string {
                          return machine.known.accepted ? "accepted" : "missing";
                        },
                    },
                    machine.phase);
}

}  // namespace

Step step(const FacilityPolicy& policy, FacilityMachine machine, const Event& event,
          const Now& now) {
  return StepInProgress(policy, std::move(machine), now).run(event);
}

std::string describe(const FacilityMachine& machine) {
  const std::string text = text_of(machine);
  const std::string& error = machine.link.last_error;
  if (machine.link.auth_required)
    return std::string(kAuthPause) + ", " + text + ": " + log::printable(error, 300);
  return error.empty() ? text : text + ", retrying: " + log::printable(error, 300);
}

const std::vector<Transition>& transitions() {
  static const std::vector<Transition> kTransitions(rows().begin(), rows().end());
  return kTransitions;
}

std::string_view name_of(const Phase& phase) { return kPhases[phase.index()]; }
std::string_view name_of(const Event& event) { return kEvents[event.index()]; }
std::vector<std::string_view> phase_names() { return {kPhases.begin(), kPhases.end()}; }

// --- Time -------------------------------------------------------------------------------------

std::optional<Deadline> deadline(const FacilityPolicy& policy, const Now& now) {
  if (policy.deadline.count() == 0 || !now.since_first_submission) return std::nullopt;
  return Deadline{.left = Nanoseconds(policy.deadline) - *now.since_first_submission,
                  .ends_attempts = policy.on_missing != config::OnMissing::kWait};
}

// A check for the report is one stat at the facility and costs its scheduler nothing. A delay of a
// tenth of the time since the submission is short enough; near the expected end (the previous
// round's duration), the delay is a quarter of the time left.
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

// A wrong script fails soon after the submission; later, sites ask for at most one query per
// poll interval; a job that has queued for an hour is queried five times less often.
Nanoseconds query_interval(const FacilityPolicy& policy, Nanoseconds watched, bool pending) {
  const Nanoseconds usual = policy.poll_interval;
  if (pending && watched > minutes(60)) return 5 * usual;
  return std::clamp<Nanoseconds>(watched / 2, std::min<Nanoseconds>(usual, seconds(2)), usual);
}

Nanoseconds backoff(std::string_view seed, int retry) {
  constexpr Nanoseconds kFirst = seconds(5), kMost = minutes(15);
  Nanoseconds wait = kFirst;
  for (int i = 1; i < retry && wait < kMost; ++i) wait *= 2;
  wait = std::min(wait, kMost);
  const std::string hash = sha256_hex(std::string(seed) + "/" + std::to_string(retry));
  const auto jitter = std::stoul(hash.substr(0, 4), nullptr, 16);  // of 65536
  return wait - wait * static_cast<int64_t>(jitter) / (2 * 65536);
}

}  // namespace xffl::facility
