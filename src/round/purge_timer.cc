#include "purge_timer.h"

#include <algorithm>
#include <chrono>

#include "context.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::round {
namespace {

using std::chrono::nanoseconds;

// How often it is asked whose turn it is.
nanoseconds interval_of(const config::Experiment& experiment) {
  nanoseconds interval = std::chrono::hours(1);
  for (const config::Facility& facility : experiment.facilities)
    if (facility.purge_after.count() > 0)
      interval = std::min(interval, nanoseconds(facility.purge_after) / 64);
  return std::max<nanoseconds>(interval, std::chrono::milliseconds(10));
}

void look(Context& context, const plan::FacilityPlan& plan, const std::stop_token& stop) {
  const config::Facility& facility = context.experiment.facility(plan.facility);
  if (!context.purges.is_due(facility, context.world.clock.monotonic())) return;
  context.purges.look_after(*context.world.connect(facility), facility, plan.folder, stop);
}

void work(Context& context, const std::stop_token& stop) {
  // Where the folders are does not depend on the round or its model.
  const auto plan = plan::next_round(context.experiment, context.identity,
                                     {.rounds_published = 0, .model_sha256 = "0"});
  if (!plan) return;
  const nanoseconds interval = interval_of(context.experiment);
  do
    for (const plan::FacilityPlan& facility : plan->facilities) look(context, facility, stop);
  while (context.world.clock.sleep(interval, stop));
}

}  // namespace

PurgeTimer::PurgeTimer(Context& context) {
  const auto& facilities = context.experiment.facilities;
  const auto purges = [](const config::Facility& each) { return each.purge_after.count() > 0; };
  if (std::none_of(facilities.begin(), facilities.end(), purges)) return;
  thread_ = std::jthread([&context](std::stop_token stop) {
    try {
      work(context, stop);
    } catch (const std::exception& error) {  // a thread's top
      if (!stop.stop_requested())
        log::warning("sites' purging is no longer looked after", {{"problem", error.what()}});
    }
  });
}

PurgeTimer::~PurgeTimer() = default;

}  // namespace xffl::round
