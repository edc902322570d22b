// How it works: step() decides, this loop does: records first, durably and in order, then the
// action, whose outcome goes into the next step.
#include "xffl/facility/driver.h"

#include <algorithm>
#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::facility {
namespace {

Rules rules_of(const Context& context, const plan::RoundPlan& plan,
               const plan::FacilityPlan& facility, std::chrono::milliseconds settle_time) {
  const config::RoundPolicy& policy = context.experiment.policy;
  Rules rules;
  rules.max_attempts = policy.max_attempts;
  rules.rerun_budget = policy.rerun_budget;
  rules.waits_for_ever = policy.on_missing == config::OnMissing::kWait;
  rules.deadline = policy.deadline;
  rules.poll_interval =
      context.experiment.poll_interval(context.experiment.facility(facility.facility));
  rules.settle_time = settle_time;
  rules.max_outage = policy.max_outage;
  rules.seed = context.identity.secret + "/" + facility.facility.str();
  const history::FacilityState before = context.history.facility(plan.round - 1, facility.facility);
  if (before.accepted && !plan.evaluates)
    rules.expected_training = std::chrono::seconds(static_cast<int64_t>(  // a facility's word
        std::min(before.accepted->report.total_seconds, 86400.0 * 365)));
  return rules;
}

}  // namespace

FacilityDriver::FacilityDriver(Context& context, const plan::RoundPlan& plan,
                               const plan::FacilityPlan& facility)
    : context_(context),
      plan_(plan),
      facility_(facility),
      actions_(context, plan, facility),
      rules_(rules_of(context, plan, facility, actions_.settle_time())),
      began_(context.services.clock.monotonic()),
      began_utc_(context.services.clock.utc()) {}

FacilityOutcome FacilityDriver::run(std::stop_token stop) {
  const history::FacilityState before = known();
  if (!before.accepted || !brings_the_archive(*before.accepted, stop)) sweep_earlier_rounds(stop);
  Step next = step(rules_, Course{known(), {}}, Began{}, moment());
  for (;;) {
    for (Record& record : next.records) keep(record);
    show(next.course);
    tell_trouble(next.course);
    if (std::holds_alternative<Finish>(next.action)) break;
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped on request");
    if (const auto* submit = std::get_if<Submit>(&next.action))
      actions_.look_at_room(submit->attempt);
    const Event event = actions_.perform(next.action, stop);
    follow(next.action);
    next = step(rules_, std::move(next.course), event, moment());
  }
  const history::FacilityState state = known();
  return {state.accepted, state.accepted ? "" : state.missing.value_or("unknown")};
}

// An accepted update whose files are damaged here, and cannot be had again, is trained anew.
bool FacilityDriver::brings_the_archive(const history::Accepted& accepted, std::stop_token stop) {
  const auto gives_up = [&] { return past_deadline(moment()) && !rules_.waits_for_ever; };
  const auto lost = actions_.mend_archive(accepted, rules_.max_outage, gives_up, stop);
  if (!lost) return true;
  log::warning(
      "an accepted update is lost: the facility trains again",
      {{"facility", facility_.facility.str()}, {"round", plan_.round}, {"problem", *lost}});
  context_.history.record("update_lost", plan_.round, facility_.facility, accepted.attempt,
                          {{"reason", *lost}});
  return false;
}

bool FacilityDriver::past_deadline(const Moment& moment) const {
  return rules_.deadline.count() > 0 && moment.since_first_submission &&
         *moment.since_first_submission >= rules_.deadline;
}

// A deadline ends nothing where the policy is to wait: people are told.
void FacilityDriver::show(const Course& course) {
  std::string words = describe(course);
  const bool over = course.known.accepted || course.known.missing;
  if (!over && rules_.waits_for_ever && past_deadline(moment())) {
    words += ", past the round's deadline";
    if (!std::exchange(told_late_, true))
      log::warning("the round's deadline has passed and it waits on, as policy.on_missing says",
                   {{"facility", facility_.facility.str()},
                    {"round", plan_.round},
                    {"deadline_s", rules_.deadline.count()},
                    {"state", describe(course)},
                    {"to go on without it",
                     "stop this coordinator, set policy.on_missing: skip in "
                     "xffl.yaml, `xffl run`"}});
  }
  context_.live.show(plan_.round, facility_.facility, words);
}

// Waits are monotonic; the wall clock only says how long before this coordinator began an earlier
// one had submitted.
Moment FacilityDriver::moment() const {
  const Clock& clock = context_.services.clock;
  Moment moment;
  moment.now = clock.monotonic().time_since_epoch();
  moment.paused = context_.history.paused(facility_.facility);
  if (const auto ours = context_.first_submissions.of(plan_.round))
    moment.since_first_submission = clock.monotonic() - *ours;
  else if (const auto first = parse_utc(context_.history.round(plan_.round).first_submission_utc))
    moment.since_first_submission = (began_utc_ - *first) + (clock.monotonic() - began_);
  return moment;
}

// Adds to a record what the course cannot know, journals it and tells people.
void FacilityDriver::keep(Record& record) {
  if (record.kind == "attempt_opened")
    record.payload["nonce"] = actions_.spec(record.attempt).key.nonce;
  if (record.kind == "submit_intended")
    record.payload.update(actions_.prepare_submission(record.attempt));
  if (record.kind == "attempt_failed" && !known().current()->job_id.empty())
    record.payload["output"] = actions_.output_tail(record.attempt);
  if (record.kind == "submitted" &&
      context_.history.round(plan_.round).first_submission_utc.empty())
    context_.first_submissions.note(plan_.round, context_.services.clock.monotonic());
  const int round = record.kind == "facility_paused" ? 0 : plan_.round;
  context_.history.record(record.kind, round, facility_.facility, record.attempt, record.payload);
  tell(record);
}

void FacilityDriver::tell(const Record& record) const {
  const auto text = [&](const char* key) {
    return record.payload.contains(key) && record.payload[key].is_string()
               ? record.payload[key].get<std::string>()
               : "";
  };
  const log::Field facility{"facility", facility_.facility.str()};
  const log::Field number{"round", plan_.round}, attempt{"attempt", record.attempt};
  if (record.kind == "submitted") {
    const auto offer = actions_.kept_allocation(record.attempt);
    const bool stayed = offer && offer->job.str() == text("job_id");
    log::info(record.payload["adopted"] ? "job found again"
              : stayed                  ? "job that stayed goes on"
                                        : "job submitted",
              {facility, number, attempt, {"job", text("job_id")}});
  }
  if (record.kind == "attempt_failed")
    log::warning(
        "attempt failed",
        {facility, number, attempt, {"reason", text("reason")}, {"output", text("output")}});
  if (record.kind == "facility_paused")
    log::warning("facility paused: a person decides",
                 {facility,
                  {"reason", text("reason")},
                  {"continue", "xffl resume " + facility_.facility.str()}});
  if (record.kind == "update_accepted") tell_accepted(record.payload);
}

void FacilityDriver::tell_accepted(const Json& payload) const {
  const log::Field facility{"facility", facility_.facility.str()}, number{"round", plan_.round};
  if (plan_.evaluates) {
    const history::FacilityState state = known();
    for (const job::ValidationResult& set : state.accepted->report.validation)
      log::info("last global model measured",
                {facility, {"set", set.name}, {"loss", set.nll_before}});
    return;
  }
  const Json& report = payload["report"];
  log::info("update accepted", {facility,
                                number,
                                {"tokens", report.value("tokens", int64_t{0})},
                                {"train_loss", report.value("train_loss", 0.0)},
                                {"change", payload.value("change", 0.0)}});
  if (const std::string why = report.value("optimizer_lost", ""); !why.empty())
    log::warning("the optimizer began anew at a facility: its state of the round before is lost",
                 {facility, number, {"problem", why}});
}

void FacilityDriver::follow(const Action& action) {
  if (const auto* look = std::get_if<Look>(&action)) actions_.show_progress(look->attempt);
}

// Once for each trouble, and when it is over.
void FacilityDriver::tell_trouble(const Course& course) {
  const std::string& trouble = course.now.trouble;
  if (trouble == told_) return;
  const log::Field facility{"facility", facility_.facility.str()};
  if (trouble.empty())
    log::info("the trouble is over", {facility});
  else if (course.now.needs_person)
    log::warning("PAUSED(auth): jobs go on; this continues by itself when it is mended",
                 {facility, {"problem", trouble}});
  else
    log::warning("trouble at a facility: tried again",
                 {facility, {"while", describe({course.known, {}})}, {"problem", trouble}});
  told_ = trouble;
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

// Whoever could still begin finds its claim taken; whoever has begun is cancelled.
void FacilityDriver::end_jobs(const history::Attempt& attempt, std::stop_token stop) {
  const int number = attempt.number;
  std::vector<Action> actions = {Fence{number}};
  if (!attempt.job_id.empty()) actions.push_back(CancelJob{number, JobId(attempt.job_id)});
  actions.push_back(Sleep{attempt.job_id.empty() ? actions_.settle_time() : Nanoseconds(1)});
  actions.push_back(FindJobs{number});
  for (size_t i = 0; i < actions.size(); ++i) {
    const Event event = actions_.perform(actions[i], stop);
    if (const auto* lost = std::get_if<Unreachable>(&event))
      throw Error(ErrorKind::kRemote, lost->why);
    if (const auto* auth = std::get_if<NeedsPerson>(&event))
      throw Error(ErrorKind::kAuth, auth->why);
    if (const auto* found = std::get_if<Found>(&event))
      for (const JobId& job : found->jobs)
        if (job.str() != attempt.job_id) actions.push_back(CancelJob{number, job});
  }
  context_.history.record("cancel_confirmed", plan_.round, facility_.facility, number,
                          Json::object());
}

void FacilityDriver::repeat_cancel(std::stop_token stop) {
  const history::FacilityState state = known();
  if (const history::Attempt* attempt = state.current();
      attempt != nullptr && attempt->cancel_intended)
    end_jobs(*attempt, stop);
}

void FacilityDriver::cancel(const std::string& reason) {
  actions_.release_allocation();
  const history::FacilityState state = known();
  const history::Attempt* current = state.current();
  if (current == nullptr || state.accepted) return;
  if (current->failure) return repeat_cancel({});
  const int number = current->number;
  if (current->submit_intended) {
    if (!current->cancel_intended)
      context_.history.record("cancel_intended", plan_.round, facility_.facility, number,
                              Json::object());
    end_jobs(*current, {});
  }
  context_.history.record("attempt_failed", plan_.round, facility_.facility, number,
                          {{"reason", reason}});
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
