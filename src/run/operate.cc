// How it works: the process that gets the journal's lock acts on the request. While a coordinator
// holds the lock, operate() leaves a request file and waits until the coordinator removes the file.
// For a cancellation, operate() always leaves a file. The file stays until the run is cancelled,
// even when this process is killed or a facility is unreachable.
#include <algorithm>

#include "run_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/run_folder.h"
#include "xffl/run/federation.h"

namespace xffl::run {
namespace {

void act_here(const config::Experiment& experiment, const history::RunFolder& folder,
              facility::Services& services, const history::Request& request, std::string& left) {
  history::RunHistory history(folder.journal());
  const history::RunState run_state = history.state();
  if (!run_state.identity || run_state.completed || run_state.cancelled)
    throw Error(ErrorKind::kNotFound, "run " + folder.run().str() + " has ended");
  history::check_location(history, folder);
  const facility::Observer none;
  history::StatusFile live(folder.live(), services.clock);
  facility::Context context{experiment,          folder, services, none, history, live,
                            *run_state.identity, {}};
  if (request.kind != history::Request::Kind::kCancel) return set_paused(context, request);
  if (left.empty()) left = history::leave_request(folder, request);
  cancel_now(context);
}

// Whether a failed attempt of the round in progress counts against the facility's budget.
bool has_used_budget(const facility::Context& context, const FacilityName& name) {
  const int round = context.history.state().done().rounds_published + 1;
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
        if (was_left && error.kind() == ErrorKind::kNotFound) {  // the run has ended meanwhile
          history::remove_request(folder, left);
          return;
        }
        throw;
      }
    }
    if (left.empty())
      left = history::leave_request(folder, request);
    else if (!std::filesystem::exists(folder.requests() / left))
      return;  // the coordinator has acted on the request
    if (services.clock.monotonic() > until)
      throw Error(ErrorKind::kBusy,
                  "the coordinator of run " + folder.run().str() + " (" +
                      history::lock_holder(folder.journal()) +
                      ") has not acted on the request yet; the request stays: see "
                      "`xffl status`");
    services.clock.sleep(std::chrono::milliseconds(200), {});
  }
}

void set_paused(facility::Context& context, const history::Request& request) {
  for (const FacilityName& name : request.facilities) {
    const bool paused = context.history.paused(name).has_value();
    if (request.kind == history::Request::Kind::kPause && !paused) {
      context.history.record({.facility = name}, history::FacilityPaused{.reason = request.reason});
      const bool keeps = context.experiment.facility(name).slurm.keep_allocation.count() > 0;
      if (const auto plan = keeps ? current_plan(context) : std::nullopt)
        release_allocation(context, *plan, name);
    }
    if (request.kind == history::Request::Kind::kResume &&
        (paused || has_used_budget(context, name)))
      context.history.record({.facility = name}, history::FacilityResumed{.new_budget = true});
  }
}

}  // namespace xffl::run
