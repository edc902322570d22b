// How it works: the handler of the pair (phase, event) in the table below changes the phase and
// adds records. Then next() of the phase returns the next action, or enters another phase. Before
// each next(), time_is_up() ends an attempt past its limit. The records hold all facts that a
// restart needs, so that Resumed finds the phase again.
#include "xffl/facility/machine.h"

#include <algorithm>
#include <array>

#include "step_in_progress.h"
#include "xffl/base/sha256.h"

namespace xffl::facility {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr seconds kAuthInterval{5};

// The reason why the facility gets no further attempt; none while it gets one. A restart of the
// coordinator leaves the budget as it is. Attempts before a user renewed the budget do not count;
// neither do attempts that another attempt continued.
std::optional<std::string> spent_budget(const FacilityPolicy& policy,
                                        const history::FacilityState& known) {
  int counted = 0, reruns = 0;
  int64_t most_steps = 0;
  for (const history::Attempt& attempt : known.attempts) {
    const bool advanced = attempt.steps > most_steps;  // an advancing training may take many jobs
    most_steps = std::max(most_steps, attempt.steps);
    if (attempt.number <= known.attempts_before_renewal || advanced) continue;
    ++(attempt.counts_as_attempt ? counted : reruns);
  }
  const auto spent = [&](const std::string& budget) {
    return "no attempt left (" + budget +
           "; `xffl resume` renews it); the last one: " + *known.attempts.back().failure;
  };
  if (counted >= policy.max_attempts)
    return spent("policy.max_attempts is " + std::to_string(policy.max_attempts));
  if (reruns > policy.rerun_budget)
    return spent("policy.rerun_budget is " + std::to_string(policy.rerun_budget));
  return std::nullopt;
}

constexpr std::array<std::string_view, std::variant_size_v<Phase>> kPhases = {
    "Idle",  "Pushing",  "Submitting", "Searching", "Polling",
    "Ended", "Fetching", "Closing",    "Finished"};
constexpr std::array<std::string_view, std::variant_size_v<Event>> kEvents = {
    "Resumed",        "Pushed",        "Completed",  "Submitted",   "SubmitRejected",
    "SubmitDeferred", "SubmitUnknown", "Found",      "Polled",      "Fetched",
    "UpdateRejected", "Checkpointed",  "TimerFired", "Unreachable", "AuthRequired"};

using Handler = void (*)(StepInProgress&, Phase&, const Event&);
struct Row : Transition {
  Handler handler = nullptr;  // the event's handler
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

// Adds the rows of the phases whose actions the machine repeats after a pause.
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
          moves<Pushing>(kNextAction,
                         {to<Submitting>("pushed"), to<Closing>("evaluation over the budget")}),
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

}  // namespace

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

// --- Phases without a file of their own --------------------------------------------------------

void StepInProgress::on(Idle&, const Resumed&) {
  if (known_.accepted || known_.missing) return enter(Finished{});
  if (!attempt_is_open()) return;
  const bool unknown = submission_is_unknown();
  if (unknown) {  // the old coordinator left a submission: let it arrive
    count_unknown_submission();
    wait_ = policy_.settle_time;
  }
  // This run cancelled the job, not a user. The job may have reported all the same.
  if (attempt().cancel_intended)
    return close({.reason = "its cancellation had begun",
                  .counts_as_attempt = false,
                  .final_poll = !attempt().job_id.empty()});
  if (unknown) return enter(Searching{});
  if (attempt().job_id.empty()) return enter(Pushing{});
  watch(JobId(attempt().job_id), {});
}

std::optional<Action> StepInProgress::next(Idle&) {
  const bool has_jobs_to_cancel = !known_.attempts.empty() && attempt().cancel_intended;
  if (policy_.evaluates && now_.over_budget && !has_jobs_to_cancel) {
    give_up(*now_.over_budget);
    return std::nullopt;
  }
  if ((paused_ || !has_jobs_to_cancel) && must_wait_to_submit()) return wait_for_user();
  if (has_jobs_to_cancel)
    enter(Closing{});
  else
    open_attempt();
  return std::nullopt;
}

std::optional<Action> StepInProgress::next(Pushing&) {
  if (policy_.evaluates && now_.over_budget) {
    close({.reason = *now_.over_budget, .counts_as_attempt = false, .fatal = true});
    return std::nullopt;
  }
  if (must_wait_to_submit()) return wait_for_user();
  if (!attempt().pushed) return Push{attempt().number};
  record(history::SubmitIntended{});
  enter(Submitting{});
  return std::nullopt;
}

void StepInProgress::on(Fetching&, const Fetched& fetched) {
  record(fetched.details);
  enter(Finished{});
}

void StepInProgress::on(Fetching&, const UpdateRejected& rejected) {
  // The same job on the same data would most likely give the same update.
  close({.reason = "its update was rejected: " + rejected.reason, .fatal = true});
}

void StepInProgress::on(Fetching&, const Checkpointed& stopped) {
  close({.reason = "stopped ahead of its walltime after " + std::to_string(stopped.steps) +
                   " steps, to be continued",
         .counts_as_attempt = false,
         .steps = stopped.steps});
}

// --- The link ----------------------------------------------------------------------------------

void StepInProgress::update_link(const Event& event) {
  std::visit(Overloaded{[](const Unreachable&) {}, [](const AuthRequired&) {},
                        [](const TimerFired&) {}, [&](const auto&) { link_ = {}; }},
             event);
}

void StepInProgress::retry_later(const Unreachable& unreachable) {
  // Bytes from an earlier try count as progress: the link is bad, not down.
  if (unreachable.gained_bytes > 0) link_.failures = 0;
  if (++link_.failures == 1) link_.failing_since = now_.time;
  link_.last_error = unreachable.reason;
  link_.auth_required = false;
  wait_ = backoff(policy_.seed, link_.failures);
}

void StepInProgress::wait_for_credential(const AuthRequired& required) {
  link_.last_error = required.reason;
  link_.auth_required = true;
  no_outage();
  wait_ = std::min<Nanoseconds>(policy_.poll_interval, kAuthInterval);
}

Action StepInProgress::wait_for_user() {
  no_outage();
  return sleep(policy_.poll_interval);
}

// Ahead of a submission and of its push. A budget pauses the facility, and ends its own pause. The
// evaluation of the last model does not wait for a user.
bool StepInProgress::must_wait_to_submit() {
  if (!paused_ && now_.over_budget) {
    records_.push_back(
        {0, history::FacilityPaused{.reason = *now_.over_budget, .by_budget = true}});
    paused_ = true;
  } else if (paused_ && now_.paused_by_budget && !now_.over_budget) {
    records_.push_back({0, history::FacilityResumed{}});
    paused_ = false;
  }
  return paused_;
}

// The machine waits for a user, and not for the facility.
void StepInProgress::no_outage() {
  link_.failures = 0;
  if (memory_.unknown_since) memory_.unknown_since = now_.time;
}

Sleep StepInProgress::sleep(Nanoseconds duration) const {
  const auto limit = deadline(policy_, now_);
  if (limit && limit->ends_attempts && !limit->has_passed())
    duration = std::min(duration, limit->left);
  return {std::max(duration, Nanoseconds(1))};
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

// --- The attempt -------------------------------------------------------------------------------

void StepInProgress::enter(Phase phase) {
  path_.push_back({name_of(machine_.phase), cause_, name_of(phase)});
  machine_.phase = std::move(phase);
}

void StepInProgress::record(int number, history::Event event) {
  apply(known_, number, event);
  records_.push_back({number, std::move(event)});
}

void StepInProgress::open_attempt() {
  if (const auto spent = spent_budget(policy_, known_)) return give_up(*spent);
  const int number = known_.attempts.empty() ? 1 : attempt().number + 1;
  forget_attempt();
  record(number, history::AttemptOpened{});
  enter(Pushing{});
}

void StepInProgress::give_up(const std::string& reason) {
  record(0, history::FacilityMissing{.reason = reason});
  link_ = {};
  enter(Finished{});
}

void StepInProgress::forget_attempt() {
  link_ = {};
  memory_ = {};
}

// --- Public functions --------------------------------------------------------------------------

Step step(const FacilityPolicy& policy, FacilityMachine machine, const Event& event,
          const Now& now) {
  return StepInProgress(policy, std::move(machine), now).run(event);
}

const std::vector<Transition>& transitions() {
  static const std::vector<Transition> kTransitions(rows().begin(), rows().end());
  return kTransitions;
}

std::string_view name_of(const Phase& phase) { return kPhases[phase.index()]; }
std::string_view name_of(const Event& event) { return kEvents[event.index()]; }
std::vector<std::string_view> phase_names() { return {kPhases.begin(), kPhases.end()}; }

}  // namespace xffl::facility
