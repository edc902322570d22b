// How it works: one thread per facility drives its part; each thread records what it did. The
// participants are frozen in the journal before aggregation, so that a restart aggregates the same
// set to the same bytes.
#include "run_round.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "dtype_of.h"
#include "participants.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/facility/driver.h"

namespace xffl::run {

namespace fs = std::filesystem;

namespace {

// One facility's thread: its outcome, or the error that ended it.
struct FacilityThread {
  std::unique_ptr<facility::FacilityDriver> facility;
  facility::FacilityOutcome outcome;
  std::exception_ptr error;
};

void drive(FacilityThread& seat, facility::Context& context, const plan::RoundPlan& plan,
           const plan::FacilityPlan& facility, std::stop_source& round_stop) {
  try {
    seat.facility = std::make_unique<facility::FacilityDriver>(context, plan, facility);
    seat.outcome = seat.facility->run(round_stop.get_token());
    const bool fails =
        !seat.outcome.accepted && context.experiment.policy.on_missing == config::OnMissing::kFail;
    if (fails) round_stop.request_stop();
  } catch (...) {  // a thread's top: the error goes on in the round's thread
    seat.error = std::current_exception();
    // What broke here would break the round: the others stop waiting, their jobs go on.
    round_stop.request_stop();
  }
}

bool is_cancelled(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kCancelled;
  } catch (const std::exception&) {
    return false;
  }
}

[[noreturn]] void fail_round(const plan::RoundPlan& plan, const std::vector<FacilityThread>& seats,
                             const std::string& rule) {
  std::string message =
      "round " + std::to_string(plan.round) + " cannot be aggregated (" + rule + "):";
  for (size_t i = 0; i < seats.size(); ++i)
    if (!seats[i].outcome.accepted && !seats[i].outcome.missing.empty())
      message += "\n  " + plan.facilities[i].facility.str() + ": " + seats[i].outcome.missing;
  message +=
      "\nUpdates that arrived are kept. When the cause is mended, `xffl run` tries the missing "
      "facilities again.";
  throw Error(ErrorKind::kFailed, message);
}

// A facility that cannot be told now does not hide why the round failed: it is told when the run
// goes on, or is cancelled.
void cancel_others(const plan::RoundPlan& plan, const std::vector<FacilityThread>& seats) {
  for (size_t i = 0; i < seats.size(); ++i) try {
      if (seats[i].error && seats[i].facility)
        seats[i].facility->cancel("the round failed at another facility (policy.on_missing: fail)");
    } catch (const Error& error) {
      log::warning(
          "a job may go on at a facility that could not be told: `xffl run` and `xffl "
          "cancel` tell it again",
          {{"facility", plan.facilities[i].facility.str()},
           {"round", plan.round},
           {"problem", error.what()}});
    }
}

// Brings in what the facilities trained, side by side.
std::vector<history::Accepted> train_everywhere(facility::Context& context,
                                                const plan::RoundPlan& plan, std::stop_token stop) {
  std::vector<FacilityThread> seats(plan.facilities.size());
  std::stop_source round_stop;
  std::stop_callback forward(stop, [&] { round_stop.request_stop(); });
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < seats.size(); ++i)
      threads.emplace_back(
          [&, i] { drive(seats[i], context, plan, plan.facilities[i], round_stop); });
  }
  std::vector<history::Accepted> accepted;
  bool missing = false;
  for (const FacilityThread& seat : seats) {
    if (seat.error && !is_cancelled(seat.error)) std::rethrow_exception(seat.error);
    if (seat.outcome.accepted) accepted.push_back(*seat.outcome.accepted);
    missing = missing || !seat.outcome.missing.empty();
  }
  if (missing && context.experiment.policy.on_missing == config::OnMissing::kFail) {
    cancel_others(plan, seats);
    fail_round(plan, seats, "policy.on_missing is fail");
  }
  if (stop.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped on request; jobs at the facilities go on");
  for (const FacilityThread& seat : seats)
    if (seat.error) std::rethrow_exception(seat.error);
  if (static_cast<int>(accepted.size()) < plan.quorum)
    fail_round(plan, seats,
               std::to_string(accepted.size()) + " of " + std::to_string(seats.size()) +
                   " updates, " + std::to_string(plan.quorum) + " needed");
  return accepted;
}

// From here on the set does not change, whatever arrives later.
std::vector<history::Accepted> freeze_participants(facility::Context& context,
                                                   const plan::RoundPlan& plan,
                                                   std::vector<history::Accepted> accepted) {
  const config::WeightKind weights = context.experiment.aggregation.weights;
  const history::RoundState round = context.history.round(plan.round);
  if (!round.participants.empty())
    return frozen_participants(plan.round, round.participants, accepted, weights);
  context.history.record({.round = plan.round}, participants_of(accepted, weights));
  return accepted;
}

void aggregate_updates(facility::Context& context, const plan::RoundPlan& plan,
                       const std::vector<history::Accepted>& participants) {
  if (!context.history.round(plan.round).model_sha256.empty()) return;
  const config::Aggregation& settings = context.experiment.aggregation;
  std::vector<aggregate::Input> inputs;
  for (const history::Accepted& update : participants)
    inputs.push_back({context.folder.facility(plan.round, update.facility) / "update",
                      weight_of(update, settings.weights), update.facility.str(),
                      update.facility.str()});
  // What a killed coordinator left is made again: the journal does not vouch for it.
  fs::remove_all(context.folder.master(plan.round));
  fs::remove_all(context.folder.global(plan.round));
  aggregate::server_step(context.folder.master(plan.round - 1), inputs,
                         settings.update == job::UpdateKind::kDelta,
                         dtype_of(settings.publish_dtype), context.folder.master(plan.round),
                         context.folder.global(plan.round), {.spare = &context.spare});
  const checkpoint::Manifest model = checkpoint::read_manifest(context.folder.global(plan.round));
  context.checked.note(context.folder.global(plan.round), model);
  const checkpoint::Manifest master = checkpoint::read_manifest(context.folder.master(plan.round));
  context.history.record({.round = plan.round},
                         history::Aggregated{.model_sha256 = model.root_sha256(),
                                             .master_sha256 = master.root_sha256()});
}

// CURRENT names the newest published model; it changes in one rename.
void publish(facility::Context& context, const plan::RoundPlan& plan) {
  const fs::path target = fs::path(context.folder.round(plan.round).filename()) / "global";
  const fs::path temp = context.folder.current().string() + ".tmp";
  fs::remove(temp);
  fs::create_directory_symlink(target, temp);
  rename_durable(temp, context.folder.current());
  const std::string model = context.history.round(plan.round).model_sha256;
  context.history.record({.round = plan.round}, history::Published{.model_sha256 = model});
  log::info("global model published", {{"round", plan.round}, {"sha256", model}});
}

// What a round was made of stays on the disk; nobody reads it again unless something is amiss.
void spare_memory_of(facility::Context& context, const plan::RoundPlan& plan,
                     const std::vector<history::Accepted>& participants) {
  context.spare.add(context.folder.master(plan.round - 1));
  context.spare.add(context.folder.global(plan.round - 1));
  for (const history::Accepted& update : participants)
    context.spare.add(context.folder.facility(plan.round, update.facility) / "update");
}

}  // namespace

void record_plan(facility::Context& context, const plan::RoundPlan& plan) {
  if (context.history.round(plan.round).planned) return;
  history::RoundPlanned planned{.base_sha256 = plan.base_sha256,
                                .plan_sha256 = sha256_hex(plan::format_plan(plan)),
                                .facilities = {},
                                .evaluates = plan.evaluates};
  for (const plan::FacilityPlan& facility : plan.facilities)
    planned.facilities.push_back(facility.facility);
  context.history.record({.round = plan.round}, planned);
}

void run_round(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop) {
  const auto began = context.services.clock.monotonic();
  record_plan(context, plan);
  const std::vector<history::Accepted> accepted = train_everywhere(context, plan, stop);
  const std::vector<history::Accepted> participants = freeze_participants(context, plan, accepted);
  aggregate_updates(context, plan, participants);
  publish(context, plan);
  context.packed.drop(context.folder, plan.round);
  spare_memory_of(context, plan, participants);
  if (context.observer.on_round)
    context.observer.on_round(
        plan.round, participants,
        std::chrono::duration<double>(context.services.clock.monotonic() - began).count());
}

void cancel_leftovers(facility::Context& context, int last, std::stop_token stop) {
  for (const config::Facility& facility : context.experiment.facilities)
    for (const facility::Leftover& left : facility::leftovers(context, facility.name, last + 1))
      try {
        facility::FacilityDriver(context, left.plan, left.facility).repeat_cancel(stop);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kRemote && error.kind() != ErrorKind::kAuth) throw;
        log::warning("a job may go on at a facility that could not be told: cancel it by hand",
                     {{"facility", facility.name.str()},
                      {"round", left.plan.round},
                      {"job", left.job_id.empty() ? "in doubt" : left.job_id},
                      {"problem", error.what()}});
      }
}

void cancel_round(facility::Context& context, const plan::RoundPlan& plan,
                  const std::string& reason) {
  std::optional<Error> problem;
  for (const plan::FacilityPlan& facility : plan.facilities) try {
      facility::FacilityDriver(context, plan, facility).cancel(reason);
    } catch (Error& error) {  // the others' jobs end all the same
      error.add_context(facility.facility.str());
      if (!problem) problem = error;
    }
  if (problem) throw *problem;
}

void release_allocation(facility::Context& context, const plan::RoundPlan& plan,
                        const FacilityName& name) {
  for (const plan::FacilityPlan& facility : plan.facilities)
    if (facility.facility == name)
      facility::FacilityDriver(context, plan, facility).release_allocation();
}

}  // namespace xffl::run
