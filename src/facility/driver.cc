// How it works: step() decides and run() acts. run() records the events first, durably and in
// order, then performs the action and hands the outcome to the next step(). The round's deadline
// also ends an action under way: its transfer or command then counts as lost.
#include "xffl/facility/driver.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <new>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "action_limit.h"
#include "site.h"
#include "xffl/base/log.h"
#include "xffl/facility/budget.h"
#include "xffl/remote/stop_scope.h"

namespace xffl::facility {
namespace {

FacilityPolicy policy_of(const Context& context, const plan::RoundPlan& plan,
                         const plan::FacilityPlan& facility,
                         std::chrono::milliseconds settle_time) {
  FacilityPolicy policy = facility_policy(
      context.experiment, context.experiment.facility(facility.facility), settle_time);
  policy.seed = context.identity.secret + "/" + facility.facility.str();
  policy.evaluates = plan.evaluates;
  const history::FacilityState before = context.history.facility(plan.round - 1, facility.facility);
  if (before.accepted && !plan.evaluates)
    policy.expected_training =
        std::chrono::seconds(static_cast<int64_t>(  // from the facility's own report
            std::min(before.accepted->report.total_seconds, 86400.0 * 365)));
  return policy;
}

using std::chrono::seconds;
using SteadyClock = std::chrono::steady_clock;

// After the deadline: an action that has just begun gets kBegun, the fetch of a report that the
// driver has seen kFetch, all steps of the attempt's end together kCleanup, the end of the job's
// output kTail, and its times and metrics kTraces each. All of them together get kTogether, so that
// the round ends within 20 s: each is noticed half a second late, and events take time to record.
constexpr seconds kBegun{5}, kFetch{8}, kCleanup{8}, kTail{2}, kTraces{1}, kTogether{17};
// At any time, for a job's times ahead of a record, and for the metrics of all attempts at the end:
// each round's publication waits for both.
constexpr seconds kTimes{10}, kMetrics{10};
// The least time for the fetch of an accepted update that this machine has lost: the deadline or a
// departure ends the fetch later than other actions.
constexpr seconds kRestore{120};
// The pause between attempts to record an event on this machine after the round's deadline.
constexpr seconds kLatePause{5};

// The machine's event for an action's error; none: the error concerns this computer
// (facility_errors.h).
std::optional<Event> event_of(const Error& error, const Action& action) {
  const bool submits = std::holds_alternative<Submit>(action);
  switch (error.kind()) {
    case ErrorKind::kRemote:
      if (submits) return SubmitUnknown{error.what()};
      return Unreachable{error.what()};
    case ErrorKind::kAuth:
      return AuthRequired{error.what()};
    case ErrorKind::kIo:  // a full disk, there or here: a user may free space
      return Unreachable{error.what()};
    case ErrorKind::kBusy:
      if (submits) return SubmitDeferred{error.what()};
      break;
    case ErrorKind::kConfig:
    case ErrorKind::kNotFound:
      if (submits) return SubmitRejected{error.what()};
      break;
    default:
      break;
  }
  return std::nullopt;
}

}  // namespace

FacilityPolicy facility_policy(const config::Experiment& experiment,
                               const config::Facility& facility,
                               std::chrono::milliseconds settle_time) {
  FacilityPolicy policy{experiment.policy};
  policy.poll_interval = experiment.poll_interval(facility);
  policy.settle_time = settle_time;
  return policy;
}

class FacilityDriver::Impl {
 public:
  Impl(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility)
      : context_(context),
        plan_(plan),
        facility_(facility),
        site_(context, plan, facility),
        policy_(policy_of(context, plan, facility, site_.settle_time())),
        began_(context.services.clock.monotonic()),
        began_utc_(context.services.clock.utc()) {}

  FacilityOutcome run(std::stop_token stop) {
    const remote::StopScope stop_scope(stop);
    obeys_deadline_ = true;
    run_began_ = SteadyClock::now();
    begin(stop);
    Step next = resume();
    for (int failures = 0;;) {
      const Kept kept = keep_all(next.records);
      if (kept.script) {
        next = without_script(std::move(next.machine), kept.script->what());
        continue;
      }
      if (kept.problem) pause_after(*kept.problem, ++failures, stop);
      if (!kept.all) {
        next = resume();
        continue;
      }
      failures = 0;
      show(next.machine);
      log_link(next.machine);
      if (std::holds_alternative<Finish>(next.action)) break;
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      context_.history.check_writer();
      const Event event = perform(next.action, stop);
      note_answer(event);
      next = step(policy_, std::move(next.machine), event, now_with_budget());
    }
    const history::FacilityState state = known();
    if (answers_) try {
        keep_metrics(state);
      } catch (const std::bad_alloc&) {  // the round does not need them
        log::warning("the metrics were not kept", {site_.name_field(), {"problem", kNoMemory}});
      }
    return {state.accepted, state.accepted ? "" : state.missing.value_or("unknown")};
  }

  StagedScript stage(std::stop_token stop) {
    if (site_.settings.scheduler.manager().submit_by_hand.empty())
      throw Error(ErrorKind::kUsage,
                  facility_.facility.str() +
                      " has scheduler: " + std::string(site_.settings.scheduler.manager().name) +
                      ", which has no submission by hand: `xffl run` starts its jobs");
    const remote::StopScope stop_scope(stop);
    Step next = resume();
    for (;;) {
      const Kept kept = keep_all(next.records);
      if (kept.script) throw *kept.script;
      if (kept.problem) throw Error(ErrorKind::kIo, *kept.problem);
      if (!kept.all) {
        next = resume();
        continue;
      }
      log_link(next.machine);
      context_.history.check_writer();
      if (const auto* submit = std::get_if<Submit>(&next.action)) {
        push_.check_space(submit->attempt);
        return job_.stage(submit->attempt);
      }
      if (const auto* poll = std::get_if<Poll>(&next.action)) {
        StagedScript staged = job_.staged(poll->attempt);
        staged.job = poll->job;
        return staged;
      }
      require_stageable(next);
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      const Event event = perform(next.action, stop);
      next = step(policy_, std::move(next.machine), event, now_with_budget());
    }
  }

  void repeat_cancel(std::stop_token stop) {
    const remote::StopScope stop_scope(stop);
    const history::FacilityState state = known();
    if (const history::Attempt* attempt = state.current();
        attempt != nullptr && attempt->cancel_intended)
      end_jobs(*attempt, stop);
  }

  bool has_report(std::stop_token stop) {
    const remote::StopScope stop_scope(stop);
    const history::FacilityState state = known();
    const history::Attempt* current = state.current();
    if (current == nullptr || current->failure || current->cancel_intended ||
        current->job_id.empty() || state.accepted)
      return false;
    try {
      return fetch_.has_reported(current->number);
    } catch (const Error&) {  // the facility does not answer
      return false;
    }
  }

  void release_allocation() try {
    const auto began = SteadyClock::now();
    const ActionLimit limit(remote::StopScope::current(),
                            [&] { return SteadyClock::now() - began > kCleanup; });
    const remote::StopScope stop_scope(limit.token());
    job_.release_allocation();
  } catch (const Error& error) {  // this machine refuses the limit's thread
    log::warning("a kept allocation was not released: it expires by itself",
                 {site_.name_field(), {"problem", error.what()}});
  }

  void cancel(const std::string& reason, std::stop_token stop) {
    const remote::StopScope stop_scope(stop);
    release_allocation();
    const history::FacilityState state = known();
    const history::Attempt* current = state.current();
    if (current == nullptr || state.accepted) return;
    if (current->failure) return repeat_cancel(stop);
    const int number = current->number;
    if (current->submit_intended) {
      if (!current->cancel_intended)
        context_.history.record(scope(number), history::CancelIntended{});
      end_jobs(*current, stop);
    }
    // The facility has not failed.
    context_.history.record(
        scope(number),
        history::AttemptFailed{
            .reason = reason, .counts_as_attempt = false, .steps = {}, .output = {}});
  }

 private:
  /// Throws the reason why stage() does not perform `next`.
  void require_stageable(const Step& next) const {
    const std::string name = facility_.facility.str();
    const Link& link = next.machine.link;
    if (std::holds_alternative<Sleep>(next.action) && !link.last_error.empty())
      throw Error(link.auth_required ? ErrorKind::kAuth : ErrorKind::kRemote, link.last_error);
    if (const auto paused = context_.history.paused(facility_.facility))
      throw Error(ErrorKind::kUsage,
                  name + " is paused (" + *paused + "): `xffl resume " + name + "` ends the pause");
    if (std::holds_alternative<Push>(next.action) ||
        std::holds_alternative<FindJobs>(next.action) || std::holds_alternative<Sleep>(next.action))
      return;
    const history::FacilityState& known = next.machine.known;
    throw Error(ErrorKind::kUsage,
                name + " has no job to submit in round " + std::to_string(plan_.round) + ": " +
                    (known.accepted  ? "its update is accepted"
                     : known.missing ? *known.missing
                                     : "its attempt " + std::to_string(known.current()->number) +
                                           " is ending, which `xffl run` continues"));
  }

  /// The work ahead of the machine's first step. An error of this machine may pass, as in
  /// keep_all(); at the round's deadline the machine begins without this work.
  void begin(std::stop_token stop) {
    const auto began = SteadyClock::now();
    for (int failures = 0;;) {
      try {
        const history::FacilityState before = known();
        const bool is_kept = before.accepted && has_update(*before.accepted, stop);
        run_began_ = SteadyClock::now();  // the later steps have their time after a long fetch, too
        if (!is_kept) end_earlier_jobs(stop);
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kIo) throw;
        pause_after(error.what(), ++failures, stop);
      } catch (const std::filesystem::filesystem_error& error) {
        pause_after(error.what(), ++failures, stop);
      } catch (const std::bad_alloc&) {
        pause_after(kNoMemory, ++failures, stop);
      }
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      context_.history.check_writer();
      if (is_past_deadline(seconds(0), began, seconds(0))) return;
    }
  }

  /// False when an accepted update is damaged and the facility has lost it: the facility trains
  /// again.
  bool has_update(const history::Accepted& accepted, std::stop_token stop) {
    // is_past_deadline() alone is true kTogether after the deadline.
    const auto is_over = [this](SteadyClock::time_point began) {
      return SteadyClock::now() - began >= kRestore && is_past_deadline(kFetch, began, kRestore);
    };
    const auto lost = fetch_.restore(accepted, policy_.max_outage, is_over, stop);
    if (!lost) return true;
    log::warning("an accepted update is lost: the facility trains again",
                 {site_.name_field(), {"round", plan_.round}, {"problem", *lost}});
    context_.history.record(scope(accepted.attempt), history::UpdateLost{.reason = *lost});
    return false;
  }

  void end_earlier_jobs(std::stop_token stop) {
    const auto began = SteadyClock::now();
    const ActionLimit limit(stop, [&] { return is_past_deadline(seconds(0), began, kBegun); });
    try {
      for (const Leftover& left :
           repeat_cancellations(context_, facility_.facility, plan_.round, limit.token()))
        log::debug("a job of an earlier round is not cancelled yet",
                   {site_.name_field(), {"round", left.round}, {"problem", left.problem}});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCancelled || !limit.is_reached()) throw;
    }
  }

  /// True when the action that began at `began` has run for `least`, and a user has made the
  /// facility leave the round, or the deadline ends attempts and has passed by `allowance`. Also
  /// true when the deadline has passed, and the driver has run, for kTogether: a driver that begins
  /// after the deadline has the same time.
  bool is_past_deadline(seconds allowance, SteadyClock::time_point began, seconds least) const {
    const Now present = now();
    const bool has_run = SteadyClock::now() - began >= least;
    if (present.left) return has_run;
    const auto limit = deadline(policy_, present);
    if (!limit || !limit->is_up()) return false;
    if (-limit->left >= kTogether && SteadyClock::now() - run_began_ >= kTogether) return true;
    return -limit->left >= allowance && has_run;
  }

  static bool is_cleanup(const Action& action) {
    return std::holds_alternative<Fence>(action) || std::holds_alternative<FindJobs>(action) ||
           std::holds_alternative<CancelJob>(action);
  }

  // Whether the deadline ends the action now. Called by the thread of an ActionLimit.
  bool is_over(const Action& action, SteadyClock::time_point began) const {
    if (!obeys_deadline_) return false;
    if (std::holds_alternative<FetchUpdate>(action)) return is_past_deadline(kFetch, began, kBegun);
    if (cleanup_began_ && is_cleanup(action))
      return is_past_deadline(seconds(0), *cleanup_began_, kCleanup);
    return is_past_deadline(seconds(0), began, kBegun);
  }

  // With on_missing: wait, a passed deadline has no effect except a log event and a text in the
  // status file.
  void show(const FacilityMachine& machine) {
    activity_ = describe(machine);
    is_finished_ = std::holds_alternative<Finished>(machine.phase);
    show_activity();
  }
  void show_activity() {
    std::string activity = activity_;
    const auto limit = is_finished_ ? std::nullopt : deadline(policy_, now());
    if (limit && limit->after_quorum && !limit->has_passed())
      activity += ", the round ends at " + end_of_round(limit->left);
    if (limit && limit->has_passed() && !limit->ends_attempts) {
      activity += ", past the round's deadline";
      if (!std::exchange(logged_late_, true))
        log::warning("the round's deadline has passed: still waiting (policy.on_missing: wait)",
                     {site_.name_field(),
                      {"round", plan_.round},
                      {"deadline_s", policy_.deadline.count()},
                      {"state", activity_},
                      {"to continue without it",
                       "stop this coordinator, set policy.on_missing: skip in "
                       "xffl.yaml, `xffl run`"}});
    }
    site_.show(activity);
  }

  // The text stays the same as long as the end of the round does, so that the status file changes
  // rarely.
  std::string end_of_round(Nanoseconds left) {
    const Clock::UtcTime end =
        context_.services.clock.utc() + std::chrono::duration_cast<Clock::UtcTime::duration>(left);
    const auto shift = end - round_ends_.value_or(Clock::UtcTime{});
    if (!round_ends_ || std::chrono::abs(shift) > std::chrono::seconds(2)) round_ends_ = end;
    return format_utc(*round_ends_);
  }

  // Waits use the monotonic clock. The wall clock only gives the time between an earlier
  // coordinator's submission and the start of this one.
  Now now() const {
    const Clock& clock = context_.services.clock;
    Now now;
    now.time = clock.monotonic().time_since_epoch();
    now.paused = context_.history.paused(facility_.facility);
    if (const auto first = first_submission())
      now.since_first_submission = clock.monotonic() - *first;
    now.since_quorum = since_quorum();
    now.left = context_.history.departed(plan_.round, facility_.facility);
    return now;
  }
  /// Before a step, which may end in a submission.
  Now now_with_budget() const {
    Now now = this->now();
    if (!has_budget() && !now.paused) return now;  // the pause may be that of a removed budget
    const history::Spending spending = context_.history.spending();
    now.over_budget = over_budget(context_.experiment, site_.settings, spending);
    now.paused_by_budget = spending.is_paused(facility_.facility);
    return now;
  }
  bool has_budget() const { return !site_.settings.may_requeue; }
  // Notes an earlier coordinator's submission, because the limits of actions ask twice a second,
  // and the history copies the whole round.
  std::optional<Clock::MonotonicTime> first_submission() const {
    if (const auto known = context_.first_submissions.of(plan_.round)) return known;
    if (const auto first = parse_utc(context_.history.round(plan_.round).first_submission_utc))
      context_.first_submissions.note(plan_.round, began_ - (began_utc_ - *first));
    return context_.first_submissions.of(plan_.round);
  }
  Nanoseconds since(Clock::UtcTime time) const {
    return (began_utc_ - time) + (context_.services.clock.monotonic() - began_);
  }

  // The updates on record have the times of the quorum, so that a restarted coordinator ends the
  // round at the same moment.
  std::optional<Nanoseconds> since_quorum() const {
    if (plan_.evaluates) return std::nullopt;
    std::vector<Nanoseconds> ages;
    for (const history::Acceptance& update : context_.history.acceptances(plan_.round)) {
      const auto ours = context_.acceptance_times.of(plan_.round, update.facility, update.attempt);
      if (ours)
        ages.push_back(context_.services.clock.monotonic() - *ours);
      else if (const auto time = parse_utc(update.time_utc))
        ages.push_back(since(*time));
    }
    const auto needed = static_cast<size_t>(quorum_now(context_, plan_));
    if (ages.size() < needed) return std::nullopt;
    std::sort(ages.begin(), ages.end(), std::greater<>());
    return ages[needed - 1];
  }

  /// The machine's first step from the state in the journal.
  Step resume() const {
    return step(policy_, FacilityMachine{.known = known(), .phase = {}, .link = {}, .memory = {}},
                Resumed{}, now_with_budget());
  }

  // A user may correct the template while the round goes on: the machine stays ahead of the intent
  // to submit, which is not on record, and retries as for any trouble of the facility.
  Step without_script(FacilityMachine machine, const std::string& problem) const {
    machine.known = known();
    machine.phase = Pushing{};
    return step(policy_, std::move(machine), Unreachable{problem}, now_with_budget());
  }

  struct Kept {
    bool all = true;
    std::optional<std::string> problem{};
    std::optional<Error> script{};
  };
  /// Writes the records up to an error of this machine (a full disk, no free file descriptor),
  /// which may pass, to a submission that a job of another facility has pushed over the run's
  /// budget, or to a submission without a script, because the facility's template is wrong or
  /// absent. An error of the journal itself throws.
  Kept keep_all(const std::vector<Record>& records) {
    for (const Record& record : records) {
      history::Event event = record.event;
      try {
        complete(record.attempt, event);
      } catch (const Error& error) {
        const bool of_template =
            error.kind() == ErrorKind::kConfig || error.kind() == ErrorKind::kNotFound;
        if (of_template && std::holds_alternative<history::SubmitIntended>(event))
          return {.all = false, .script = error};
        if (error.kind() != ErrorKind::kIo) throw;
        return {false, error.what()};
      } catch (const std::filesystem::filesystem_error& error) {
        return {false, error.what()};
      } catch (const std::bad_alloc&) {
        return {false, kNoMemory};
      }
      if (!keep(record.attempt, event)) return {false, {}};
    }
    return {};
  }

  void pause_after(const std::string& problem, int failures, std::stop_token stop) {
    log::warning("this machine does not answer as expected: will retry",
                 {site_.name_field(), {"round", plan_.round}, {"problem", problem}});
    site_.show("retrying: " + log::printable(problem, 300));
    sleep(backoff(policy_.seed, failures), stop);
    if (const auto limit = deadline(policy_, now()); limit && limit->is_up())
      context_.services.clock.sleep(kLatePause, std::move(stop));  // sleep() no longer pauses
  }

  /// Records and logs a complete event. False, with no effect: the budget no longer allows it.
  bool keep(int attempt, const history::Event& event) {
    if (std::holds_alternative<history::Submitted>(event) &&
        context_.history.round(plan_.round).first_submission_utc.empty())
      context_.first_submissions.note(plan_.round, context_.services.clock.monotonic());
    const bool is_update = std::holds_alternative<history::UpdateAccepted>(event);
    if (is_update)
      context_.acceptance_times.note(plan_.round, facility_.facility, attempt,
                                     context_.services.clock.monotonic());
    const bool is_run_event = std::holds_alternative<history::FacilityPaused>(event) ||
                              std::holds_alternative<history::FacilityResumed>(event);
    const bool is_submission = std::holds_alternative<history::SubmitIntended>(event);
    const history::EventScope where =
        is_run_event ? history::EventScope{.facility = facility_.facility} : scope(attempt);
    if (is_submission && has_budget()) {
      const bool is_recorded =
          context_.history.record_if(where, event, [&](const history::Spending& spending) {
            return !over_budget(context_.experiment, site_.settings, spending);
          });
      if (!is_recorded) return false;
      warn_of_budget();
    } else {
      context_.history.record(where, event);
    }
    log_event(attempt, event);
    if (is_update) announce_update();
    return true;
  }

  /// Logs once in this coordinator that a budget is nearly used.
  void warn_of_budget() {
    const history::Spending spending = context_.history.spending();
    const auto warn = [&](const std::string& key, const config::Budget& budget, double seconds) {
      const auto text = budget_warning(budget, seconds);
      if (text && context_.budget_warnings.is_first(key))
        log::warning("a budget is nearly used", {{"budget", key}, {"spending", *text}});
    };
    warn("facilities." + facility_.facility.str() + ".budget", site_.settings.budget,
         spending.node_seconds(facility_.facility));
    warn("policy.budget", context_.experiment.policy.budget, spending.node_seconds());
  }

  void announce_update() {
    context_.round_changes.announce();
    const auto limit = deadline(policy_, now());
    const size_t updates = context_.history.acceptances(plan_.round).size();
    if (!limit || !limit->after_quorum || updates == plan_.facilities.size() ||
        context_.quorum_logged.exchange(plan_.round) == plan_.round)
      return;
    log::info("the quorum is met: the round ends without later updates",
              {{"round", plan_.round},
               {"updates", updates},
               {"seconds_left", std::chrono::duration<double>(limit->left).count()}});
  }

  /// Runs `body`, which reads at the facility for users only: until `after_deadline` after the
  /// round's deadline, and no longer than `longest` if given. Reads nothing when this machine has
  /// no thread for the limit.
  template <class Body>
  auto within(seconds after_deadline, std::optional<seconds> longest, const Body& body) {
    const auto began = SteadyClock::now();
    std::optional<ActionLimit> limit;
    try {
      limit.emplace(remote::StopScope::current(), [&] {
        return (longest && SteadyClock::now() - began > *longest) ||
               (obeys_deadline_ && is_past_deadline(seconds(0), began, after_deadline));
      });
    } catch (const Error&) {
      return decltype(body())();
    }
    const remote::StopScope stop_scope(limit->token());
    return body();
  }

  /// Adds the facts that the machine does not know.
  void complete(int attempt, history::Event& event) {
    if (auto* opened = std::get_if<history::AttemptOpened>(&event))
      opened->nonce = site_.spec(attempt).key.nonce;
    if (auto* intended = std::get_if<history::SubmitIntended>(&event))
      *intended = job_.prepare_submission(attempt);
    if (auto* failed = std::get_if<history::AttemptFailed>(&event))
      if (!known().current()->job_id.empty()) {
        failed->output = within(kTail, {}, [&] { return job_.output_tail(attempt); });
        failed->usage = within(kTraces, kTimes, [&] { return traces_.usage(attempt); });
      }
    if (auto* accepted = std::get_if<history::UpdateAccepted>(&event))
      accepted->usage = within(kTraces, kTimes, [&] { return traces_.usage(attempt); });
  }

  // Last in the facility's part of the round, so that a restarted coordinator fetches what an
  // earlier one has not.
  void keep_metrics(const history::FacilityState& state) {
    within(kTraces, kMetrics, [&] {
      for (const history::Attempt& attempt : state.attempts)
        if (!attempt.job_id.empty()) traces_.keep_metrics(attempt.number);
    });
  }

  void log_event(int attempt, const history::Event& event) const {
    const log::Field facility = site_.name_field();
    const log::Field round{"round", plan_.round}, number{"attempt", attempt};
    if (const auto* submitted = std::get_if<history::Submitted>(&event)) {
      const auto kept = job_.kept_allocation(attempt);
      const bool reused = kept && kept->job == submitted->job_id;
      log::info(submitted->adopted ? "job found again"
                : reused           ? "kept allocation takes the attempt"
                                   : "job submitted",
                {facility, round, number, {"job", submitted->job_id.str()}});
    }
    if (const auto* failed = std::get_if<history::AttemptFailed>(&event))
      log::warning(
          "attempt failed",
          {facility, round, number, {"reason", failed->reason}, {"output", failed->output}});
    if (const auto* paused = std::get_if<history::FacilityPaused>(&event))
      log::warning("facility paused: user action needed",
                   {facility,
                    {"reason", paused->reason},
                    {"continue", (paused->by_budget ? "raise the budget in xffl.yaml, or for one "
                                                      "more job: "
                                                    : "") +
                                     ("xffl resume " + facility_.facility.str())}});
    if (std::holds_alternative<history::FacilityResumed>(event))
      log::info("the budget allows the facility's next job", {facility});
    if (const auto* update = std::get_if<history::UpdateAccepted>(&event)) log_accepted(*update);
  }

  void log_accepted(const history::UpdateAccepted& update) const {
    const log::Field facility = site_.name_field(), round{"round", plan_.round};
    const job::JobReport& report = update.report;
    if (plan_.evaluates) {
      for (const job::ValidationResult& set : report.validation)
        log::info("last global model evaluated",
                  {facility, {"set", set.name}, {"loss", set.nll_before}});
      return;
    }
    log::info("update accepted", {facility,
                                  round,
                                  {"tokens", report.tokens},
                                  {"train_loss", report.train_loss},
                                  {"change", update.change}});
    if (!report.optimizer_lost.empty())
      log::warning(
          "the optimizer state was lost at a facility: its training started with a new one",
          {facility, round, {"problem", report.optimizer_lost}});
  }

  // The machine forgets the link's errors when it gives the facility up.
  void note_answer(const Event& event) {
    if (std::holds_alternative<Unreachable>(event) || std::holds_alternative<AuthRequired>(event))
      answers_ = false;
    else if (!std::holds_alternative<TimerFired>(event))
      answers_ = true;
  }

  /// Logs each error of the link once, and the link's recovery.
  void log_link(const FacilityMachine& machine) {
    const Link& link = machine.link;
    log_needs_user(machine);
    if (link.last_error == last_logged_ || (link.last_error.empty() && !answers_)) return;
    const log::Field facility = site_.name_field();
    if (link.last_error.empty()) {
      log::info("facility reachable again", {facility});
    } else if (link.auth_required) {
      log::warning(
          "facility paused: authentication needed (running jobs are unaffected; resumes "
          "automatically)",
          {facility, {"problem", link.last_error}});
    } else {
      FacilityMachine activity = machine;
      activity.link = {};
      log::warning("facility does not answer as expected: will retry",
                   {facility, {"while", describe(activity)}, {"problem", link.last_error}});
    }
    last_logged_ = link.last_error;
  }

  /// Logs repeated errors of the facility once, and again only after the facility has answered.
  void log_needs_user(const FacilityMachine& machine) {
    const bool needs = needs_user(machine);
    if (needs && !logged_needs_user_)
      log::warning("a facility needs you: its errors repeat (the others continue)",
                   {site_.name_field(), {"state", describe(machine)}});
    logged_needs_user_ = needs;
  }

  // The fence stops a job that has not begun; the cancellation stops a job that has begun.
  void end_jobs(const history::Attempt& attempt, std::stop_token stop) {
    const int number = attempt.number;
    std::vector<Action> actions = {Fence{number}};
    if (!attempt.job_id.empty()) actions.push_back(CancelJob{number, JobId(attempt.job_id)});
    actions.push_back(FindJobs{number});
    bool may_arrive = attempt.job_id.empty();
    for (size_t i = 0; i < actions.size() || may_arrive; ++i) {
      if (i == actions.size()) {
        // A lost submission may arrive late. The settle time does not end with the round.
        site_.sleep(site_.settle_time(), stop);
        actions.push_back(FindJobs{number});
        may_arrive = false;
      }
      context_.history.check_writer();
      const Event event = perform(actions[i], stop);
      if (const auto* lost = std::get_if<Unreachable>(&event))
        throw Error(ErrorKind::kRemote, lost->reason);
      if (const auto* auth = std::get_if<AuthRequired>(&event))
        throw Error(ErrorKind::kAuth, auth->reason);
      if (const auto* found = std::get_if<Found>(&event))
        for (const JobId& job : found->jobs) {
          may_arrive = false;
          if (job.str() != attempt.job_id) actions.push_back(CancelJob{number, job});
        }
    }
    context_.history.record(scope(number), history::CancelConfirmed{});
  }

  /// The action's outcome. A failure of the link or of the facility is an event; a failure of this
  /// machine throws, as does kCancelled on `stop`.
  Event perform(const Action& action, std::stop_token outer) {
    if (std::holds_alternative<Sleep>(action)) {  // sleep() itself obeys the deadline
      const remote::StopScope stop_scope(outer);
      return perform_now(action, outer);
    }
    const auto began = SteadyClock::now();
    if (is_cleanup(action) && !cleanup_began_ && is_past_deadline(seconds(0), began, seconds(0)))
      cleanup_began_ = began;
    std::optional<ActionLimit> limit;
    try {
      limit.emplace(outer, [&] { return is_over(action, began); });
    } catch (const Error& error) {  // no thread: nothing was done yet
      return *event_of(error, action);
    }
    const remote::StopScope stop_scope(limit->token());
    try {
      return perform_now(action, limit->token());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCancelled || !limit->is_reached()) throw;
      const Error late(ErrorKind::kRemote,
                       std::string("the deadline ended the action: ") + error.what());
      return *event_of(late, action);
    }
  }

  Event perform_now(const Action& action, std::stop_token stop) {
    site_.gained_bytes = 0;
    try {
      return std::visit(
          Overloaded{[&](const Push& a) { return push_.push(a.attempt, stop); },
                     [&](const Submit& a) {
                       if (auto over = reserve_larger_job(a.attempt))
                         return Event(SubmitDeferred{*std::move(over)});
                       push_.check_space(a.attempt);
                       return Event(Submitted{job_.submit(a.attempt, stop)});
                     },
                     [&](const FindJobs& a) { return Event(Found{job_.find(a.attempt, stop)}); },
                     [&](const Poll& a) {
                       Event event = poll(a, stop);
                       job_.show_progress(a.attempt);
                       return event;
                     },
                     [&](const FetchUpdate& a) { return fetch_.fetch(a.attempt, stop); },
                     [&](const CancelJob& a) {
                       job_.cancel(a.attempt, a.job, stop);
                       return Event(Completed{});
                     },
                     [&](const Fence& a) {
                       job_.fence(a.attempt);
                       return Event(Completed{});
                     },
                     [&](const Sleep& a) { return sleep(a.duration, stop); },
                     [](const Finish&) { return Event(TimerFired{}); }},
          action);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kBusy && !context_.history.is_writer()) throw;
      auto event = event_of(error, action);
      if (!event && error.kind() == ErrorKind::kCancelled && !stop.stop_requested())
        event = event_of(Error(ErrorKind::kRemote, error.what()), action);
      if (!event) throw;
      if (auto* lost = std::get_if<Unreachable>(&*event)) lost->gained_bytes = site_.gained_bytes;
      return *std::move(event);
    } catch (const std::filesystem::filesystem_error& error) {
      return Unreachable{error.what()};
    } catch (const std::bad_alloc&) {
      return *event_of(Error(ErrorKind::kRemote, kNoMemory), action);
    }
  }

  /// After a restart xffl.yaml may have a larger job than the intended submission: reserves it, or
  /// returns why a budget does not allow it.
  std::optional<std::string> reserve_larger_job(int attempt) {
    if (!has_budget()) return std::nullopt;
    const submit::JobShape shape = site_.settings.shape();
    const double reserved =
        context_.history.spending().reserved(facility_.facility, plan_.round, attempt);
    if (shape.node_seconds(shape.walltime) <= reserved) return std::nullopt;
    history::Event again = history::SubmitIntended{};
    try {
      complete(attempt, again);
    } catch (const Error& error) {  // of the template, which a user may correct
      if (error.kind() != ErrorKind::kConfig && error.kind() != ErrorKind::kNotFound) throw;
      throw Error(ErrorKind::kIo, error.what());
    }
    std::optional<std::string> over;
    context_.history.record_if(scope(attempt), again, [&](const history::Spending& spending) {
      over = over_budget(context_.experiment, site_.settings, spending, reserved);
      return !over;
    });
    return over;
  }

  /// Sleeps for a pause of the machine. The pause ends early when the round's end has moved and has
  /// passed.
  Event sleep(Nanoseconds duration, std::stop_token stop) {
    Clock& clock = context_.services.clock;
    const auto until = clock.monotonic() + duration;
    for (;;) {
      const std::stop_token changed = context_.round_changes.next();
      Nanoseconds left = until - clock.monotonic();
      if (const auto limit = deadline(policy_, now()); limit && limit->ends_attempts)
        left = std::min(left, limit->left);
      if (left <= Nanoseconds(0) || context_.history.departed(plan_.round, facility_.facility))
        return TimerFired{};
      std::stop_source wake;
      const auto end = [&] { wake.request_stop(); };
      const std::stop_callback on_stop(stop, end), on_change(changed, end);
      if (clock.sleep(left, wake.get_token())) return TimerFired{};
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
      show_activity();
    }
  }

  Event poll(const Poll& action, std::stop_token stop) {
    using submit::JobState;
    Polled polled{.reported = fetch_.has_reported(action.attempt), .status = {}};
    if (polled.reported) return polled;
    fetch_.max_change();  // for its cache: the norm is computed while the job runs
    if (!action.ask_scheduler) return polled;
    polled.status = job_.query(action.attempt, action.job, action.decides, stop);
    const JobState state = polled.status->state;
    if (state == JobState::kPending || state == JobState::kHeld)
      push_.restore_purged_model(action.attempt, stop);
    // The job may have reported and ended since the first check. A second check saves the settle
    // time.
    if (state == JobState::kEnded || state == JobState::kUnknown)
      polled.reported = fetch_.has_reported(action.attempt);
    if (state == JobState::kEnded && !polled.reported)
      polled.model_error =
          at_the_facility([&] { return push_.input_model_problem(action.attempt); });
    return polled;
  }

  history::FacilityState known() const { return site_.state(plan_.round); }
  history::EventScope scope(int attempt) const {
    return {.round = plan_.round, .facility = facility_.facility, .attempt = attempt};
  }

  Context& context_;
  const plan::RoundPlan& plan_;
  const plan::FacilityPlan& facility_;
  Site site_;
  ModelPush push_{site_};
  FacilityJob job_{site_};
  UpdateFetch fetch_{site_};
  JobTraces traces_{site_};
  FacilityPolicy policy_;
  Clock::MonotonicTime began_;
  Clock::UtcTime began_utc_;
  std::string last_logged_;  // the last link error in the log
  bool answers_ = true;      // false after an action without an answer of the facility
  bool logged_late_ = false;
  bool logged_needs_user_ = false;
  std::string activity_;                      // describe() of the machine after its last step
  bool is_finished_ = false;                  // at its last step
  std::optional<Clock::UtcTime> round_ends_;  // after the quorum, as shown
  bool obeys_deadline_ = false;               // false in a cancellation, which no round waits for
  SteadyClock::time_point run_began_{};
  std::optional<SteadyClock::time_point> cleanup_began_;  // after the deadline
};

FacilityDriver::FacilityDriver(Context& context, const plan::RoundPlan& plan,
                               const plan::FacilityPlan& facility)
    : impl_(std::make_unique<Impl>(context, plan, facility)) {}
FacilityDriver::~FacilityDriver() = default;

FacilityOutcome FacilityDriver::run(std::stop_token stop) { return impl_->run(stop); }
StagedScript FacilityDriver::stage(std::stop_token stop) { return impl_->stage(std::move(stop)); }
void FacilityDriver::cancel(const std::string& reason, std::stop_token stop) {
  impl_->cancel(reason, std::move(stop));
}
void FacilityDriver::repeat_cancel(std::stop_token stop) { impl_->repeat_cancel(stop); }
bool FacilityDriver::has_report(std::stop_token stop) { return impl_->has_report(stop); }
void FacilityDriver::release_allocation() { impl_->release_allocation(); }

int quorum_now(const Context& context, const plan::RoundPlan& plan) {
  std::set<FacilityName> members;
  for (const history::Acceptance& update : context.history.acceptances(plan.round))
    members.insert(update.facility);
  for (const plan::FacilityPlan& facility : plan.facilities)
    if (!context.history.departed(plan.round, facility.facility)) members.insert(facility.facility);
  return std::max(1, plan::quorum(context.experiment.policy, static_cast<int>(members.size())));
}

std::vector<Leftover> repeat_cancellations(Context& context, const FacilityName& name, int before,
                                           std::stop_token stop,
                                           std::optional<std::chrono::seconds> longest) {
  std::vector<Leftover> all;
  const Clock& clock = context.services.clock;
  const auto began = clock.monotonic();
  std::optional<ActionLimit> limit;
  for (const auto& [number, job_id] : context.history.unconfirmed_cancellations(name, before)) {
    // The folder's path does not depend on the round's model.
    const auto plan = plan::next_round(context.experiment, context.identity,
                                       {.rounds_published = number - 1, .model_sha256 = "0"});
    if (!plan) continue;
    if (longest && !limit) try {
        limit.emplace(stop,
                      [&clock, began, longest] { return clock.monotonic() - began >= *longest; });
      } catch (const Error& error) {  // no thread: nothing was done yet
        all.push_back({number, job_id, error.what()});
        continue;
      }
    const auto is_late = [&] { return limit && limit->is_reached(); };
    const auto leave_late = [&] {
      all.push_back(
          {number, job_id, "not confirmed within " + std::to_string(longest->count()) + " s"});
    };
    for (const plan::FacilityPlan& facility : plan->facilities) try {
        if (facility.facility != name) continue;
        if (is_late())
          leave_late();
        else
          FacilityDriver(context, *plan, facility).repeat_cancel(limit ? limit->token() : stop);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kRemote || error.kind() == ErrorKind::kAuth)
          all.push_back({number, job_id, error.what()});
        else if (error.kind() == ErrorKind::kCancelled && is_late())
          leave_late();
        else
          throw;
      }
  }
  return all;
}

}  // namespace xffl::facility
