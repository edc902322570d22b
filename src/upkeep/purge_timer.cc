#include "xffl/upkeep/purge_timer.h"

#include <algorithm>
#include <chrono>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/context.h"
#include "xffl/upkeep/purge_guard.h"

namespace xffl::upkeep {
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

void look(facility::Context& context, PurgeWatch& watch, const plan::FacilityPlan& plan,
          const std::stop_token& stop) {
  const config::Facility& facility = context.experiment.facility(plan.facility);
  if (!watch.is_due(facility, context.services.clock.monotonic())) return;
  watch.look_after(*context.services.connect(facility), facility, plan.folder, stop);
}

void work(facility::Context& context, const std::stop_token& stop) {
  // Where the folders are does not depend on the round or its model.
  const auto plan = plan::next_round(context.experiment, context.identity,
                                     {.rounds_published = 0, .model_sha256 = "0"});
  if (!plan) return;
  const nanoseconds interval = interval_of(context.experiment);
  PurgeWatch watch;
  do
    for (const plan::FacilityPlan& facility : plan->facilities)
      look(context, watch, facility, stop);
  while (context.services.clock.sleep(interval, stop));
}

}  // namespace

PurgeTimer::PurgeTimer(facility::Context& context) {
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

}  // namespace xffl::upkeep
