// How it works: step() decides, this loop does: records first, durably and in order, then the
// action, whose outcome goes into the next step.
#include "xffl/facility/driver.h"

#include <algorithm>
#include <utility>

#include "fetch.h"
#include "job.h"
#include "push.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/facility_errors.h"

namespace xffl::facility {
namespace {

FacilityPolicy policy_of(const Context& context, const plan::RoundPlan& plan,
                         const plan::FacilityPlan& facility,
                         std::chrono::milliseconds settle_time) {
  FacilityPolicy policy = facility_policy(
      context.experiment, context.experiment.facility(facility.facility), settle_time);
  policy.seed = context.identity.secret + "/" + facility.facility.str();
  const history::FacilityState before = context.history.facility(plan.round - 1, facility.facility);
  if (before.accepted && !plan.evaluates)
    policy.expected_training =
        std::chrono::seconds(static_cast<int64_t>(  // by the facility's own report
            std::min(before.accepted->report.total_seconds, 86400.0 * 365)));
  return policy;
}

// The event that tells the machine of an action's error; none: the error is this machine's own.
std::optional<Event> event_of(const Error& error, const Action& action) {
  const bool submits = std::holds_alternative<Submit>(action);
  switch (error.kind()) {
    case ErrorKind::kRemote:
      if (submits) return SubmitUnknown{error.what()};
      return Unreachable{error.what()};
    case ErrorKind::kAuth:
      return AuthRequired{error.what()};
    case ErrorKind::kIo:  // a full disk, there or here: it may be mended while we wait
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

// The parts that perform the machine's actions.
struct FacilityDriver::Parts {
  Parts(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility)
      : site(context, plan, facility), push(site), job(site), fetch(site) {}

  /// The action's outcome. A failure of the link or of the facility is an event; a failure of this
  /// machine throws, as does kCancelled on `stop`.
  Event perform(const Action& action, std::stop_token stop) {
    site.gained_bytes = 0;
    try {
      return std::visit([&](const auto& each) { return perform(each, stop); }, action);
    } catch (const Error& error) {
      auto event = event_of(error, action);
      if (!event) throw;
      if (auto* lost = std::get_if<Unreachable>(&*event)) lost->gained_bytes = site.gained_bytes;
      return *std::move(event);
    }
  }

  Site site;
  ModelPush push;
  FacilityJob job;
  UpdateFetch fetch;

 private:
  Event perform(const Push& action, std::stop_token stop) {
    return push.push(action.attempt, stop);
  }
  Event perform(const Submit& action, std::stop_token stop) {
    return Submitted{job.submit(action.attempt, stop)};
  }
  Event perform(const FindJobs& action, std::stop_token stop) {
    return Found{job.find(action.attempt, stop)};
  }
  Event perform(const Poll& action, std::stop_token stop);
  Event perform(const FetchUpdate& action, std::stop_token stop) {
    return fetch.fetch(action.attempt, stop);
  }
  Event perform(const CancelJob& action, std::stop_token stop) {
    job.cancel(action.attempt, action.job, stop);
    return Completed{};
  }
  Event perform(const Fence& action, std::stop_token) {
    job.fence(action.attempt);
    return Completed{};
  }
  Event perform(const Sleep& action, std::stop_token stop) {
    site.sleep(action.duration, stop);
    return TimerFired{};
  }
  Event perform(const Finish&, std::stop_token) { return TimerFired{}; }
};

Event FacilityDriver::Parts::perform(const Poll& action, std::stop_token stop) {
  using submit::JobState;
  Polled polled{.reported = fetch.has_reported(action.attempt), .status = {}};
  if (polled.reported) return polled;
  fetch.max_change();  // needed later: there is time now
  if (!action.ask_scheduler) return polled;
  polled.status = job.query(action.attempt, action.job, stop);
  const JobState state = polled.status->state;
  if (state == JobState::kPending || state == JobState::kHeld)
    push.look_after_model(action.attempt, stop);
  // The job may have reported and ended since: no need to give its files the settle time then.
  if (state == JobState::kEnded || state == JobState::kUnknown)
    polled.reported = fetch.has_reported(action.attempt);
  if (state == JobState::kEnded && !polled.reported)
    polled.model_error = at_the_facility([&] { return push.given_model_problem(action.attempt); });
  return polled;
}

FacilityPolicy facility_policy(const config::Experiment& experiment,
                               const config::Facility& facility,
                               std::chrono::milliseconds settle_time) {
  const config::RoundPolicy& settings = experiment.policy;
  FacilityPolicy policy;
  policy.max_attempts = settings.max_attempts;
  policy.rerun_budget = settings.rerun_budget;
  policy.on_missing = settings.on_missing;
  policy.deadline = settings.deadline;
  policy.poll_interval = experiment.poll_interval(facility);
  policy.settle_time = settle_time;
  policy.max_outage = settings.max_outage;
  return policy;
}

FacilityDriver::FacilityDriver(Context& context, const plan::RoundPlan& plan,
                               const plan::FacilityPlan& facility)
    : context_(context),
      plan_(plan),
      facility_(facility),
      parts_(std::make_unique<Parts>(context, plan, facility)),
      policy_(policy_of(context, plan, facility, parts_->site.settle_time())),
      began_(context.services.clock.monotonic()),
      began_utc_(context.services.clock.utc()) {}

FacilityDriver::~FacilityDriver() = default;

FacilityOutcome FacilityDriver::run(std::stop_token stop) {
  const history::FacilityState before = known();
  if (!before.accepted || !brings_the_archive(*before.accepted, stop)) sweep_earlier_rounds(stop);
  Step next =
      step(policy_, FacilityMachine{.known = known(), .phase = {}, .link = {}, .memory = {}},
           Resumed{}, now());
  for (;;) {
    for (const Record& record : next.records) keep(record.attempt, record.event);
    show(next.machine);
    log_link(next.machine);
    if (std::holds_alternative<Finish>(next.action)) break;
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    if (const auto* submit = std::get_if<Submit>(&next.action))
      parts_->push.check_space(submit->attempt);
    const Event event = parts_->perform(next.action, stop);
    if (const auto* poll = std::get_if<Poll>(&next.action))
      parts_->job.show_progress(poll->attempt);
    next = step(policy_, std::move(next.machine), event, now());
  }
  const history::FacilityState state = known();
  return {state.accepted, state.accepted ? "" : state.missing.value_or("unknown")};
}

// An accepted update whose files are damaged here, and cannot be had again, is trained anew.
bool FacilityDriver::brings_the_archive(const history::Accepted& accepted, std::stop_token stop) {
  const auto gives_up = [&] {
    const auto limit = deadline(policy_, now());
    return limit && limit->ends_attempts && limit->has_passed();
  };
  const auto lost = parts_->fetch.restore(accepted, policy_.max_outage, gives_up, stop);
  if (!lost) return true;
  log::warning(
      "an accepted update is lost: the facility trains again",
      {{"facility", facility_.facility.str()}, {"round", plan_.round}, {"problem", *lost}});
  context_.history.record(scope(accepted.attempt), history::UpdateLost{.reason = *lost});
  return false;
}

// A deadline ends nothing where the policy is to wait: it is logged.
void FacilityDriver::show(const FacilityMachine& machine) {
  std::string words = describe(machine);
  const auto limit = deadline(policy_, now());
  if (!std::holds_alternative<Finished>(machine.phase) && limit && limit->has_passed() &&
      !limit->ends_attempts) {
    words += ", past the round's deadline";
    if (!std::exchange(logged_late_, true))
      log::warning("the round's deadline has passed and it waits on, as policy.on_missing says",
                   {{"facility", facility_.facility.str()},
                    {"round", plan_.round},
                    {"deadline_s", policy_.deadline.count()},
                    {"state", describe(machine)},
                    {"to go on without it",
                     "stop this coordinator, set policy.on_missing: skip in "
                     "xffl.yaml, `xffl run`"}});
  }
  context_.live.show(plan_.round, facility_.facility, words);
}

// Waits are monotonic; the wall clock only says how long before this coordinator began an earlier
// one had submitted.
Now FacilityDriver::now() const {
  const Clock& clock = context_.services.clock;
  Now now;
  now.time = clock.monotonic().time_since_epoch();
  now.paused = context_.history.paused(facility_.facility);
  if (const auto ours = context_.first_submissions.of(plan_.round))
    now.since_first_submission = clock.monotonic() - *ours;
  else if (const auto first = parse_utc(context_.history.round(plan_.round).first_submission_utc))
    now.since_first_submission = (began_utc_ - *first) + (clock.monotonic() - began_);
  return now;
}

void FacilityDriver::keep(int attempt, history::Event event) {
  complete(attempt, event);
  if (std::holds_alternative<history::Submitted>(event) &&
      context_.history.round(plan_.round).first_submission_utc.empty())
    context_.first_submissions.note(plan_.round, context_.services.clock.monotonic());
  const bool of_the_run = std::holds_alternative<history::FacilityPaused>(event);
  context_.history.record(
      of_the_run ? history::EventScope{.facility = facility_.facility} : scope(attempt), event);
  log_event(attempt, event);
}

void FacilityDriver::complete(int attempt, history::Event& event) {
  if (auto* opened = std::get_if<history::AttemptOpened>(&event))
    opened->nonce = parts_->site.spec(attempt).key.nonce;
  if (auto* intended = std::get_if<history::SubmitIntended>(&event))
    *intended = parts_->job.prepare_submission(attempt);
  if (auto* failed = std::get_if<history::AttemptFailed>(&event))
    if (!known().current()->job_id.empty()) failed->output = parts_->job.output_tail(attempt);
}

void FacilityDriver::log_event(int attempt, const history::Event& event) const {
  const log::Field facility{"facility", facility_.facility.str()};
  const log::Field round{"round", plan_.round}, number{"attempt", attempt};
  if (const auto* submitted = std::get_if<history::Submitted>(&event)) {
    const auto kept = parts_->job.kept_allocation(attempt);
    const bool reused = kept && kept->job == submitted->job_id;
    log::info(submitted->adopted ? "job found again"
              : reused           ? "kept allocation takes the attempt"
                                 : "job submitted",
              {facility, round, number, {"job", submitted->job_id.str()}});
  }
  if (const auto* failed = std::get_if<history::AttemptFailed>(&event))
    log::warning("attempt failed",
                 {facility, round, number, {"reason", failed->reason}, {"output", failed->output}});
  if (const auto* paused = std::get_if<history::FacilityPaused>(&event))
    log::warning("facility paused: a person decides",
                 {facility,
                  {"reason", paused->reason},
                  {"continue", "xffl resume " + facility_.facility.str()}});
  if (const auto* update = std::get_if<history::UpdateAccepted>(&event)) log_accepted(*update);
}

void FacilityDriver::log_accepted(const history::UpdateAccepted& update) const {
  const log::Field facility{"facility", facility_.facility.str()}, round{"round", plan_.round};
  const job::JobReport& report = update.report;
  if (plan_.evaluates) {
    for (const job::ValidationResult& set : report.validation)
      log::info("last global model measured",
                {facility, {"set", set.name}, {"loss", set.nll_before}});
    return;
  }
  log::info("update accepted", {facility,
                                round,
                                {"tokens", report.tokens},
                                {"train_loss", report.train_loss},
                                {"change", update.change}});
  if (!report.optimizer_lost.empty())
    log::warning("the optimizer began anew at a facility: its state of the round before is lost",
                 {facility, round, {"problem", report.optimizer_lost}});
}

// Each error once, and its end.
void FacilityDriver::log_link(const FacilityMachine& machine) {
  const Link& link = machine.link;
  if (link.last_error == last_logged_) return;
  const log::Field facility{"facility", facility_.facility.str()};
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

void FacilityDriver::sweep_earlier_rounds(std::stop_token stop) {
  for (const Leftover& left : leftovers(context_, facility_.facility, plan_.round)) try {
      FacilityDriver(context_, left.plan, left.facility).repeat_cancel(stop);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kRemote && error.kind() != ErrorKind::kAuth) throw;
      log::debug("a job of an earlier round is not cancelled yet",
                 {{"facility", facility_.facility.str()},
                  {"round", left.plan.round},
                  {"problem", error.what()}});
    }
}

// A job that has not begun finds its claim taken; a job that has begun is cancelled.
void FacilityDriver::end_jobs(const history::Attempt& attempt, std::stop_token stop) {
  const int number = attempt.number;
  std::vector<Action> actions = {Fence{number}};
  if (!attempt.job_id.empty()) actions.push_back(CancelJob{number, JobId(attempt.job_id)});
  actions.push_back(Sleep{attempt.job_id.empty() ? parts_->site.settle_time() : Nanoseconds(1)});
  actions.push_back(FindJobs{number});
  for (size_t i = 0; i < actions.size(); ++i) {
    const Event event = parts_->perform(actions[i], stop);
    if (const auto* lost = std::get_if<Unreachable>(&event))
      throw Error(ErrorKind::kRemote, lost->reason);
    if (const auto* auth = std::get_if<AuthRequired>(&event))
      throw Error(ErrorKind::kAuth, auth->reason);
    if (const auto* found = std::get_if<Found>(&event))
      for (const JobId& job : found->jobs)
        if (job.str() != attempt.job_id) actions.push_back(CancelJob{number, job});
  }
  context_.history.record(scope(number), history::CancelConfirmed{});
}

void FacilityDriver::repeat_cancel(std::stop_token stop) {
  const history::FacilityState state = known();
  if (const history::Attempt* attempt = state.current();
      attempt != nullptr && attempt->cancel_intended)
    end_jobs(*attempt, stop);
}

void FacilityDriver::release_allocation() { parts_->job.release_allocation(); }

void FacilityDriver::cancel(const std::string& reason) {
  parts_->job.release_allocation();
  const history::FacilityState state = known();
  const history::Attempt* current = state.current();
  if (current == nullptr || state.accepted) return;
  if (current->failure) return repeat_cancel({});
  const int number = current->number;
  if (current->submit_intended) {
    if (!current->cancel_intended)
      context_.history.record(scope(number), history::CancelIntended{});
    end_jobs(*current, {});
  }
  context_.history.record(
      scope(number),
      history::AttemptFailed{.reason = reason, .charged = {}, .steps = {}, .output = {}});
}

std::vector<Leftover> leftovers(const Context& context, const FacilityName& name, int before) {
  std::vector<Leftover> all;
  const history::RunState run_state = context.history.state();
  for (const auto& [number, round] : run_state.rounds) {
    const auto state = round.facilities.find(name);
    if (number >= before || state == round.facilities.end()) continue;
    const history::Attempt* attempt = state->second.current();
    if (attempt == nullptr || !attempt->cancel_intended) continue;
    // Where its folder is does not depend on the round's model.
    const auto plan = plan::next_round(context.experiment, context.identity,
                                       {.rounds_published = number - 1, .model_sha256 = "0"});
    if (!plan) continue;
    for (const plan::FacilityPlan& facility : plan->facilities)
      if (facility.facility == name) all.push_back({*plan, facility, attempt->job_id});
  }
  return all;
}

}  // namespace xffl::facility
