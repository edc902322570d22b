// How it works: whoever gets the journal's lock does what is asked; when a coordinator has it, a
// request is left and the answer awaited. A cancellation's request is left in any case: it stays
// until the run is cancelled, whatever becomes of this process and of the facilities' links.
#include "open_run.h"
#include "run_round.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/history/requests.h"
#include "xffl/run/federation.h"

namespace xffl::run {
namespace {

void obey_here(const config::Experiment& experiment, const history::RunFolder& folder,
               facility::Services& services, const history::Request& request, std::string& left) {
  history::RunHistory history(folder.journal());
  const history::RunState run_state = history.state();
  if (!run_state.identity || run_state.completed || run_state.cancelled)
    throw Error(ErrorKind::kNotFound, "run " + folder.run().str() + " is over");
  history::check_location(history, folder);
  const facility::Observer nobody;
  history::StatusFile live(folder.live(), services.clock);
  facility::Context context{experiment,          folder, services, nobody, history, live,
                            *run_state.identity, {}};
  if (request.kind != history::Request::Kind::kCancel) return set_paused(context, request);
  if (left.empty()) left = history::leave_request(folder, request);
  cancel_now(context);
}

void check_names(const config::Experiment& experiment, const history::Request& request) {
  for (const FacilityName& name : request.facilities) experiment.facility(name);
}

}  // namespace

void operate(const config::Experiment& experiment, const history::RunFolder& folder,
             facility::Services& services, const history::Request& request,
             std::chrono::seconds patience) {
  if (!std::filesystem::exists(folder.journal()))
    throw Error(ErrorKind::kNotFound, "there is no run in " + folder.path().string());
  check_names(experiment, request);
  std::string left;
  const auto until = services.clock.monotonic() + patience;
  for (;;) {
    const bool was_left = !left.empty();
    try {
      obey_here(experiment, folder, services, request, left);
      if (!left.empty()) history::remove_request(folder, left);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kBusy) {
        if (was_left && error.kind() == ErrorKind::kNotFound) {  // it has ended meanwhile
          history::remove_request(folder, left);
          return;
        }
        throw;
      }
    }
    if (left.empty())
      left = history::leave_request(folder, request);
    else if (!std::filesystem::exists(folder.requests() / left))
      return;  // obeyed
    if (services.clock.monotonic() > until)
      throw Error(ErrorKind::kBusy, "the coordinator of run " + folder.run().str() + " (" +
                                        history::lock_holder(folder.journal()) +
                                        ") has not obeyed yet; the request stays: see "
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
    if (request.kind == history::Request::Kind::kResume && paused)
      context.history.record({.facility = name}, history::FacilityResumed{});
  }
}

}  // namespace xffl::run
