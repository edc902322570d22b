// How it works: the process that gets the journal's lock acts on the request. While a coordinator
// holds the lock, operate() leaves a request file and waits until the coordinator removes the file.
// For a cancellation, operate() always leaves a file. The file stays until the run is cancelled,
// even when this process is killed or a facility is unreachable.
#include <algorithm>

#include "run_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/facility/driver.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/work_files.h"
#include "xffl/run/federation.h"

namespace xffl::run {
namespace {

using Kind = history::Request::Kind;

bool is_membership(const history::Request& request) {
  return request.kind == Kind::kLeave || request.kind == Kind::kJoin;
}

// The round in progress; nullptr between two rounds.
history::RoundState* present_round(history::RunState& run_state) {
  if (run_state.rounds.empty()) return nullptr;
  history::RoundState& newest = run_state.rounds.rbegin()->second;
  return newest.published || newest.members.empty() ? nullptr : &newest;
}

// Whether the run keeps a member without `name`: in the next round, and with `now` also in the
// round in progress.
bool keeps_a_member(const config::Experiment& experiment, history::RunState& run_state,
                    const FacilityName& name, bool now) {
  const auto is_other = [&](const FacilityName& each) {
    return each != name && !run_state.left.contains(each);
  };
  const bool next = std::any_of(experiment.facilities.begin(), experiment.facilities.end(),
                                [&](const auto& each) { return is_other(each.name); }) ||
                    std::any_of(run_state.joined.begin(), run_state.joined.end(), is_other);
  const history::RoundState* round = present_round(run_state);
  if (!now || round == nullptr || !round->members.contains(name)) return next;
  return next && std::any_of(round->members.begin(), round->members.end(), [&](const auto& each) {
           return each != name && !round->departed.contains(each);
         });
}

void require_other_members(const config::Experiment& experiment, const history::RunState& run_state,
                           const history::Request& request) {
  history::RunState after = run_state;
  for (const FacilityName& name : request.facilities) {
    if (!keeps_a_member(experiment, after, name, request.now))
      throw Error(ErrorKind::kUsage,
                  name.str() + " cannot leave" + (request.now ? " at once" : "") +
                      ": it is the run's last member" +
                      (request.now ? " in this round or the next" : "") +
                      ". `xffl join` adds another one, `xffl cancel` ends the run");
    after.left[name] = {request.reason, request.now};
    after.joined.erase(name);
    if (history::RoundState* round = present_round(after); round != nullptr && request.now)
      round->departed[name] = request.reason;
  }
}

// Cancels the jobs of facilities that have left at once, while no coordinator runs.
void cancel_of_left(facility::Context& context, const history::Request& request) {
  const auto plan = current_plan(context);
  if (!plan || context.history.state().initial_sha256.empty()) return;
  for (const plan::FacilityPlan& facility : plan->facilities) try {
      if (std::count(request.facilities.begin(), request.facilities.end(), facility.facility) == 0)
        continue;
      facility::FacilityDriver driver(context, *plan, facility);
      if (!driver.has_report({}))  // `xffl run` fetches a reported update
        driver.cancel("it left the run: " + request.reason, {});
    } catch (const Error& error) {
      log::warning("a job at an unreachable facility may still run: `xffl run` cancels it",
                   {{"facility", facility.facility.str()}, {"problem", error.what()}});
    }
}

// Whether the journal already holds the effect of the request.
bool is_recorded(const history::RunState& run_state, const history::Request& request) {
  for (const FacilityName& name : request.facilities) {
    const auto left = run_state.left.find(name);
    const bool has_left = left != run_state.left.end() && (left->second.now || !request.now);
    if (has_left != (request.kind == Kind::kLeave)) return false;
  }
  return true;
}

void act_here(const config::Experiment& experiment, const history::RunFolder& folder,
              facility::Services& services, const history::Request& request, std::string& left) {
  history::RunHistory history(folder.journal());
  const history::RunState run_state = history.state();
  if (!run_state.identity || run_state.completed || run_state.cancelled)
    throw Error(ErrorKind::kNotFound, "run " + folder.run().str() + " has ended");
  history::check_location(history, folder);
  history::take_over_work_files(folder, history::first_round_in_work(history), history.epoch(),
                                history::UnfinishedFiles::kLeave);
  const facility::Observer none;
  history::StatusFile live(folder.live(), services.clock, &history);
  facility::Context context{experiment, folder, services, none, history, live, *run_state.identity};
  if (is_membership(request)) {
    set_members(context, request);
    if (request.now) cancel_of_left(context, request);
    return;
  }
  if (request.kind != history::Request::Kind::kCancel) return set_paused(context, request);
  if (left.empty()) left = history::leave_request(folder, request);
  cancel_now(context, {});
}

// Whether a failed attempt of the round in progress counts against the facility's budget.
bool has_used_budget(const facility::Context& context, const FacilityName& name) {
  const int round = context.history.done().rounds_published + 1;
  const history::FacilityState facility = context.history.facility(round, name);
  return !facility.accepted &&
         std::any_of(facility.attempts.begin(), facility.attempts.end(), [&](const auto& attempt) {
           return attempt.failure && attempt.number > facility.attempts_before_renewal;
         });
}

}  // namespace

void operate(const config::Experiment& experiment, const history::RunFolder& folder,
             facility::Services& services, const history::Request& request,
             std::chrono::seconds patience) {
  if (!std::filesystem::exists(folder.journal()))
    throw Error(ErrorKind::kNotFound, "there is no run in " + folder.path().string());
  for (const FacilityName& name : request.facilities) experiment.facility(name);  // or kNotFound
  const auto state = [&] { return history::replay(history::read_events(folder.journal())); };
  if (request.kind == Kind::kJoin) require_same_training(experiment, folder, state());
  if (request.kind == Kind::kLeave) require_other_members(experiment, state(), request);
  std::string left;
  const auto until = services.clock.monotonic() + patience;
  for (;;) {
    const bool was_left = !left.empty();
    try {
      act_here(experiment, folder, services, request, left);
      if (!left.empty()) history::remove_request(folder, left);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kBusy) {
        if (!was_left || error.kind() != ErrorKind::kNotFound) throw;
        history::remove_request(folder, left);  // the run has ended meanwhile
        if (request.kind == Kind::kCancel && !state().cancelled) throw;
        return;
      }
    }
    if (left.empty())
      left = history::leave_request(folder, request);
    else if (!std::filesystem::exists(folder.requests() / left)) {
      if (is_membership(request) && !is_recorded(state(), request))
        throw Error(ErrorKind::kFailed,
                    "the coordinator did not accept the request: see `xffl logs`");
      return;  // the coordinator has acted on the request
    }
    if (services.clock.monotonic() > until)
      throw Error(ErrorKind::kBusy,
                  "the coordinator of run " + folder.run().str() + " (" +
                      history::lock_holder(folder.journal()) +
                      ") has not acted on the request yet; the request stays: see "
                      "`xffl status`");
    services.clock.sleep(std::chrono::milliseconds(200), {});
  }
}

namespace {

// A round without a plan lacks the facility, so that its end releases nothing.
void release_ahead_of_leaving(facility::Context& context, const FacilityName& name) {
  if (!keeps_allocation(context, name)) return;
  const auto plan = current_plan(context);
  if (plan && !context.history.round(plan->round).planned) release_allocation(context, *plan, name);
}

}  // namespace

void set_members(facility::Context& context, const history::Request& request) {
  const history::RunState run_state = context.history.state();
  if (request.kind == Kind::kLeave) require_other_members(context.experiment, run_state, request);
  for (const FacilityName& name : request.facilities) {
    const auto left = run_state.left.find(name);
    const bool has_left = left != run_state.left.end();
    if (request.kind == Kind::kLeave && (!has_left || (request.now && !left->second.now))) {
      if (!has_left) release_ahead_of_leaving(context, name);
      context.history.record({.facility = name},
                             history::FacilityLeft{.reason = request.reason, .now = request.now});
      log::info("facility leaves the run", {{"facility", name.str()}, {"now", request.now}});
    }
    const bool is_new =
        !run_state.joined.contains(name) &&
        std::none_of(context.experiment.facilities.begin(), context.experiment.facilities.end(),
                     [&](const config::Facility& each) { return each.name == name; });
    if (request.kind == Kind::kJoin && (has_left || is_new)) {
      context.history.record({.facility = name}, history::FacilityJoined{});
      log::info("facility joins the run with the next round", {{"facility", name.str()}});
    }
  }
  if (request.now) context.round_changes.announce();
}

bool knows_all_members(const facility::Context& context) {
  const auto& known = context.experiment.facilities;
  for (const FacilityName& name : context.history.state().joined)
    if (std::none_of(known.begin(), known.end(),
                     [&](const config::Facility& each) { return each.name == name; }))
      return false;
  return true;
}

void set_paused(facility::Context& context, const history::Request& request) {
  for (const FacilityName& name : request.facilities) {
    const bool paused = context.history.paused(name).has_value();
    // A budget ends its own pause, and not a user's.
    const bool by_budget = context.history.spending().is_paused(name);
    if (request.kind == history::Request::Kind::kPause && (!paused || by_budget)) {
      context.history.record({.facility = name}, history::FacilityPaused{.reason = request.reason});
      if (const auto plan = keeps_allocation(context, name) ? current_plan(context) : std::nullopt)
        release_allocation(context, *plan, name);
    }
    if (request.kind == history::Request::Kind::kResume &&
        (paused || has_used_budget(context, name)))
      context.history.record({.facility = name}, history::FacilityResumed{.new_budget = true});
  }
}

}  // namespace xffl::run
