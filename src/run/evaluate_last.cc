#include "evaluate_last.h"

#include <exception>
#include <thread>

#include "run_round.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/facility/driver.h"

namespace xffl::run {
namespace {

void measure(facility::Context& context, const plan::RoundPlan& plan,
             const plan::FacilityPlan& facility, std::stop_token stop, std::exception_ptr& error) {
  try {
    facility::FacilityDriver(context, plan, facility).run(stop);
  } catch (...) {  // a thread's top: the error goes on in the run's thread
    error = std::current_exception();
  }
}

void cancel_if_possible(facility::Context& context, const plan::RoundPlan& plan,
                        const plan::FacilityPlan& facility, const std::string& reason) {
  try {
    facility::FacilityDriver(context, plan, facility).cancel(reason);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    log::warning("an evaluation's job may go on: the facility could not be told",
                 {{"facility", facility.facility.str()}, {"problem", error.what()}});
  }
}

// The models are published: what is wrong with measuring the last one ends nothing.
void note_missing(facility::Context& context, const plan::RoundPlan& plan,
                  const plan::FacilityPlan& facility, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& problem) {
    if (problem.kind() == ErrorKind::kCancelled) throw;
    cancel_if_possible(context, plan, facility, problem.what());
    context.history.record({.round = plan.round, .facility = facility.facility},
                           history::FacilityMissing{.reason = problem.what()});
  }
}

}  // namespace

void evaluate_last(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop) {
  record_plan(context, plan);
  std::vector<std::exception_ptr> errors(plan.facilities.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < errors.size(); ++i)
      threads.emplace_back([&, i] { measure(context, plan, plan.facilities[i], stop, errors[i]); });
  }
  context.packed.drop(context.folder, plan.round);
  for (size_t i = 0; i < errors.size(); ++i)
    if (errors[i]) note_missing(context, plan, plan.facilities[i], errors[i]);
  for (const auto& [name, facility] : context.history.round(plan.round).facilities)
    if (facility.missing)
      log::warning("the last global model was not measured here; it is published all the same",
                   {{"facility", name.str()}, {"reason", *facility.missing}});
}

void drop_evaluation(facility::Context& context) {
  const history::RunState run_state = context.history.state();
  const auto begun = run_state.rounds.find(context.experiment.rounds + 1);
  if (begun == run_state.rounds.end()) return;
  config::Experiment wanted = context.experiment;
  wanted.policy.evaluate_last = true;
  const auto plan = plan::next_round(wanted, context.identity, run_state.done());
  if (!plan) return;
  for (const plan::FacilityPlan& facility : plan->facilities)
    cancel_if_possible(context, *plan, facility, "policy.evaluate_last is false by now");
}

}  // namespace xffl::run
