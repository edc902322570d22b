// How it works: one thread per facility drives the facility's part, and each thread records its own
// events.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "run_parts.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/sha256.h"
#include "xffl/base/threads.h"
#include "xffl/facility/driver.h"

namespace xffl::run {
namespace {

// One facility's thread: its outcome, or the error that ended it.
struct FacilityThread {
  std::unique_ptr<facility::FacilityDriver> driver;
  facility::FacilityOutcome outcome;
  std::exception_ptr error;
};

// The participants on record sufficed under the policy of that time, which may have changed since.
bool has_participants(const facility::Context& context, const plan::RoundPlan& plan) {
  return !context.history.round(plan.round).participants.empty();
}

bool has_facility(const plan::RoundPlan& plan, const FacilityName& name) {
  return std::any_of(plan.facilities.begin(), plan.facilities.end(),
                     [&](const plan::FacilityPlan& each) { return each.facility == name; });
}

// Repeats the cancellations at facilities that have left, while the round runs: no driver of a
// later round does. No round waits for a facility that has left, or fails because of it.
std::vector<std::jthread> cancel_at_left(facility::Context& context, const plan::RoundPlan& plan) {
  std::vector<std::jthread> threads;
  const auto left = context.history.state().left;
  for (const config::Facility& each : context.experiment.facilities) {
    const FacilityName& name = each.name;
    if (has_facility(plan, name) || !left.contains(name) ||
        context.history.unconfirmed_cancellations(name, plan.round).empty())
      continue;
    const auto cancel = [&context, &name, round = plan.round](const std::stop_token& round_end) {
      std::string problem;
      try {
        for (const facility::Leftover& job :
             facility::repeat_cancellations(context, name, round, round_end))
          problem = job.problem;
      } catch (const std::exception& error) {  // a thread's top: the next round tries again
        problem = error.what();
      }
      if (!problem.empty())
        log::debug("a job of a facility that has left is not cancelled yet",
                   {{"facility", name.str()}, {"problem", problem}});
    };
    try {
      threads.emplace_back(cancel);
    } catch (const std::system_error& error) {
      log::debug("no thread for the cancellations at a facility that has left",
                 {{"facility", name.str()}, {"problem", error.what()}});
    }
  }
  return threads;
}

// Drives all facilities of the round side by side. In a training round, an error or a facility
// without an update under on_missing: fail ends the other threads' waits; their jobs keep running.
std::vector<FacilityThread> drive_facilities(facility::Context& context,
                                             const plan::RoundPlan& plan, std::stop_token stop) {
  std::vector<FacilityThread> all(plan.facilities.size());
  std::stop_source round_stop;
  std::stop_callback forward(stop, [&] { round_stop.request_stop(); });
  const bool must_have_all = context.experiment.policy.on_missing == config::OnMissing::kFail &&
                             !has_participants(context, plan);
  const auto drive = [&](FacilityThread& each, const plan::FacilityPlan& facility) {
    bool failed = false;
    try {
      each.driver = std::make_unique<facility::FacilityDriver>(context, plan, facility);
      each.outcome = each.driver->run(round_stop.get_token());
      failed = !each.outcome.accepted && must_have_all &&
               !context.history.departed(plan.round, facility.facility);
    } catch (...) {  // a thread's top: the round's thread handles the error
      each.error = std::current_exception();
      failed = true;
    }
    if (failed && !plan.evaluates) round_stop.request_stop();
  };
  const std::vector<std::jthread> cancellations = cancel_at_left(context, plan);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    try {
      threads.push_back(start_thread([&, i] { drive(all[i], plan.facilities[i]); },
                                     context.services.clock, round_stop.get_token()));
    } catch (const Error&) {  // a stop of the round before its last thread
      all[i].error = std::current_exception();
    }
  }
  for (std::jthread& thread : threads) thread.join();
  return all;
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

[[noreturn]] void fail_round(const plan::RoundPlan& plan,
                             const std::vector<FacilityThread>& threads, const std::string& rule) {
  std::string message =
      "round " + std::to_string(plan.round) + " cannot be aggregated (" + rule + "):";
  for (size_t i = 0; i < threads.size(); ++i)
    if (!threads[i].outcome.accepted && !threads[i].outcome.missing.empty())
      message += "\n  " + plan.facilities[i].facility.str() + ": " + threads[i].outcome.missing;
  message +=
      "\nThe accepted updates are kept. After the cause is fixed, `xffl run` tries the missing "
      "facilities again; one without an attempt left needs `xffl resume` before.";
  throw Error(ErrorKind::kFailed, message);
}

// An unreachable facility does not hide the cause of the round's failure: the next `xffl run` or
// `xffl cancel` repeats the cancellation.
void cancel_others(const plan::RoundPlan& plan, const std::vector<FacilityThread>& threads,
                   const std::stop_token& stop) {
  parallel_for(threads.size(), threads.size(), [&](size_t i) {
    try {
      // The next `xffl run` fetches a reported update.
      if (threads[i].error && threads[i].driver && !threads[i].driver->has_report(stop))
        threads[i].driver->cancel("the round failed at another facility (policy.on_missing: fail)",
                                  stop);
    } catch (const Error& error) {
      log::warning(
          "a job at an unreachable facility may still run: `xffl run` and `xffl cancel` repeat its "
          "cancellation",
          {{"facility", plan.facilities[i].facility.str()},
           {"round", plan.round},
           {"problem", error.what()}});
    }
  });
}

// Returns the updates of the facilities, enough for the quorum.
std::vector<history::Accepted> train_everywhere(facility::Context& context,
                                                const plan::RoundPlan& plan, std::stop_token stop) {
  const std::vector<FacilityThread> threads = drive_facilities(context, plan, stop);
  std::vector<history::Accepted> accepted;
  bool missing = false;
  for (size_t i = 0; i < threads.size(); ++i) {
    const FacilityThread& each = threads[i];
    if (each.error && !is_cancelled(each.error)) std::rethrow_exception(each.error);
    if (each.outcome.accepted) accepted.push_back(*each.outcome.accepted);
    missing = missing || (!each.outcome.missing.empty() &&
                          !context.history.departed(plan.round, plan.facilities[i].facility));
  }
  const bool frozen = has_participants(context, plan);
  if (missing && !frozen && context.experiment.policy.on_missing == config::OnMissing::kFail) {
    cancel_others(plan, threads, stop);
    fail_round(plan, threads, "policy.on_missing is fail");
  }
  if (stop.stop_requested())
    throw Error(ErrorKind::kCancelled, "stopped on request; jobs at the facilities keep running");
  for (const FacilityThread& each : threads)
    if (each.error) std::rethrow_exception(each.error);
  const int quorum = facility::quorum_now(context, plan);
  if (!frozen && static_cast<int>(accepted.size()) < quorum)
    fail_round(plan, threads,
               std::to_string(accepted.size()) + " of " + std::to_string(threads.size()) +
                   " updates, " + std::to_string(quorum) + " needed");
  return accepted;
}

// The drivers survive errors of this machine, and so does the mean: this program or another one
// closes its files again, and a disk that fails or is full may recover. The error of a disk that
// does not recover ends the run; an error of the journal stays, too.
std::vector<history::Accepted> publish_patiently(facility::Context& context,
                                                 const plan::RoundPlan& plan,
                                                 const std::vector<history::Accepted>& accepted,
                                                 const std::stop_token& stop) {
  constexpr std::chrono::seconds kPause(10);
  constexpr int kTries = 3;  // with another error than a lack of file descriptors
  int failures = 0;          // likewise
  for (bool logged = false;; logged = true) {
    std::string problem;
    try {
      return publish_round(context, plan, accepted);
    } catch (const Error& error) {
      if (!lacks_descriptors(error.error_number()) &&
          (error.kind() != ErrorKind::kIo || ++failures == kTries))
        throw;
      problem = error.what();
    } catch (const std::filesystem::filesystem_error& error) {
      if (!lacks_descriptors(error.code().value()) && ++failures == kTries) throw;
      problem = error.what();
    } catch (const std::bad_alloc&) {
      if (++failures == kTries) throw;
      problem = "this machine has no memory left";
    }
    if (!logged)
      log::warning("this machine does not answer as expected: will retry",
                   {{"round", plan.round}, {"problem", problem}});
    if (!context.services.clock.sleep(kPause, stop))
      throw Error(ErrorKind::kCancelled, "stopped while this machine did not answer as expected");
  }
}

// Damage of an input ends the mean. The drivers then fetch damaged updates again, and a facility
// that has lost its update trains again.
std::vector<history::Accepted> train_and_publish(facility::Context& context,
                                                 const plan::RoundPlan& plan,
                                                 std::stop_token stop) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    const std::vector<history::Accepted> accepted = train_everywhere(context, plan, stop);
    try {
      return publish_patiently(context, plan, accepted, stop);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt || tries == kTries) throw;
      log::warning("an input of the round's mean is damaged: restoring it",
                   {{"round", plan.round}, {"problem", error.what()}});
      context.models.restore_master(plan.round - 1);
    }
  }
}

// The input of a round stays on the disk, and xffl seldom reads the input again.
void spare_memory_of(facility::Context& context, const plan::RoundPlan& plan,
                     const std::vector<history::Accepted>& participants) {
  context.spare.add(context.folder.master(plan.round - 1));
  context.spare.add(context.folder.global(plan.round - 1));
  for (const history::Accepted& update : participants)
    context.spare.add(context.folder.facility(plan.round, update.facility) / "update");
}

// The next round does not take the kept allocation of a facility that has left.
void release_of_left(facility::Context& context, const plan::RoundPlan& plan) {
  for (const auto& [name, why] : context.history.state().left) {
    if (keeps_allocation(context, name)) release_allocation(context, plan, name);
  }
}

void cancel_evaluation(facility::Context& context, const plan::RoundPlan& plan,
                       const plan::FacilityPlan& facility, const std::string& reason,
                       std::stop_token stop) {
  try {
    facility::FacilityDriver(context, plan, facility).cancel(reason, std::move(stop));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) throw;
    log::warning("an evaluation's job may still run: the facility is unreachable",
                 {{"facility", facility.facility.str()}, {"problem", error.what()}});
  } catch (const std::exception& error) {  // the run ends with all its models
    log::warning("an evaluation's job may still run: an error of this machine",
                 {{"facility", facility.facility.str()}, {"problem", error.what()}});
  }
}

// All models are published: a failed evaluation of the last model is not a failure of the run.
void record_missing(facility::Context& context, const plan::RoundPlan& plan,
                    const plan::FacilityPlan& facility, const std::exception_ptr& error,
                    std::stop_token stop) {
  std::string reason;
  try {
    std::rethrow_exception(error);
  } catch (const Error& problem) {
    if (problem.kind() == ErrorKind::kCancelled) throw;
    reason = problem.what();
  } catch (const std::exception& problem) {
    reason = problem.what();
  }
  cancel_evaluation(context, plan, facility, reason, std::move(stop));
  context.history.record({.round = plan.round, .facility = facility.facility},
                         history::FacilityMissing{.reason = reason});
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
  // The run's end waits for an evaluation, whether or not anybody can submit a job.
  if (plan.evaluates)
    context.first_submissions.note(plan.round, context.services.clock.monotonic());
}

bool lacks_descriptors(int error_number) {
  return error_number == EMFILE || error_number == ENFILE;
}

std::jthread start_thread(const std::function<void()>& body, Clock& clock, std::stop_token stop) {
  constexpr std::chrono::seconds kPause(10);
  for (bool logged = false;; logged = true) {
    try {
      return std::jthread(body);
    } catch (const std::system_error& error) {
      if (!logged)
        log::warning(
            "this machine refuses a thread for a facility: its round begins when the machine "
            "grants one (limits: `ulimit -u`, the session's cgroup)",
            {{"problem", error.what()}});
    }
    if (!clock.sleep(kPause, stop))
      throw Error(ErrorKind::kCancelled, "stopped while this machine refused a thread");
  }
}

void run_round(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop) {
  const auto began = context.services.clock.monotonic();
  record_plan(context, plan);
  const std::vector<history::Accepted> participants = train_and_publish(context, plan, stop);
  context.packed.drop(context.folder, plan.round);
  release_of_left(context, plan);
  spare_memory_of(context, plan, participants);
  if (context.observer.on_round)
    context.observer.on_round(
        plan.round, participants,
        std::chrono::duration<double>(context.services.clock.monotonic() - began).count());
}

void evaluate_last(facility::Context& context, const plan::RoundPlan& plan, std::stop_token stop) {
  record_plan(context, plan);
  const std::vector<FacilityThread> threads = drive_facilities(context, plan, stop);
  context.packed.drop(context.folder, plan.round);
  for (size_t i = 0; i < threads.size(); ++i)
    if (threads[i].error) record_missing(context, plan, plan.facilities[i], threads[i].error, stop);
  for (const auto& [name, facility] : context.history.round(plan.round).facilities)
    if (facility.missing)
      log::warning("the last global model was not measured here; it is published nevertheless",
                   {{"facility", name.str()}, {"reason", *facility.missing}});
}

void drop_evaluation(facility::Context& context, std::stop_token stop) {
  const history::RunState run_state = context.history.state();
  if (!run_state.rounds.contains(run_state.done().rounds_published + 1)) return;
  config::Experiment wanted = context.experiment;
  wanted.policy.evaluate_last = true;
  const auto plan = plan::next_round(wanted, context.identity, run_state.done());
  if (!plan) return;
  for (const plan::FacilityPlan& facility : plan->facilities)
    cancel_evaluation(context, *plan, facility, "policy.evaluate_last is false now", stop);
}

void cancel_leftovers(facility::Context& context, int last, std::stop_token stop) {
  // The evaluation at all other facilities, and the run's end, wait for these cancellations.
  constexpr std::chrono::seconds kLongest{120};
  const auto& facilities = context.experiment.facilities;
  parallel_for(facilities.size(), facilities.size(), [&](size_t i) {
    const config::Facility& facility = facilities[i];
    for (const facility::Leftover& left :
         facility::repeat_cancellations(context, facility.name, last + 1, stop, kLongest))
      log::warning("a job at an unreachable facility may still run: cancel it by hand",
                   {{"facility", facility.name.str()},
                    {"round", left.round},
                    {"job", left.job_id.empty() ? "unknown" : left.job_id},
                    {"problem", left.problem}});
  });
}

void cancel_round(facility::Context& context, const plan::RoundPlan& plan,
                  const std::string& reason, std::stop_token stop) {
  const size_t count = plan.facilities.size();
  std::vector<std::optional<Error>> problems(count);
  parallel_for(count, count, [&](size_t i) {
    try {
      facility::FacilityDriver(context, plan, plan.facilities[i]).cancel(reason, stop);
    } catch (Error& error) {  // the other facilities' jobs are cancelled nevertheless
      error.add_context(plan.facilities[i].facility.str());
      problems[i] = error;
    }
  });
  for (const auto& problem : problems)
    if (problem) throw *problem;
}

bool keeps_allocation(const facility::Context& context, const FacilityName& name) {
  const auto& all = context.experiment.facilities;
  return std::any_of(all.begin(), all.end(), [&](const config::Facility& each) {
    return each.name == name && each.shape().keep_allocation.count() > 0;
  });
}

void release_allocations(facility::Context& context, const std::optional<plan::RoundPlan>& next) {
  const int last = context.history.done().rounds_published;
  const auto plan = plan::next_round(
      context.experiment, context.identity,
      {.rounds_published = last - 1, .model_sha256 = context.history.model_sha256(last - 1)});
  if (!plan) return;
  const auto& all = context.experiment.facilities;
  parallel_for(all.size(), all.size(), [&](size_t i) {
    if (all[i].shape().keep_allocation.count() > 0 && !(next && has_facility(*next, all[i].name)))
      release_allocation(context, *plan, all[i].name);
  });
}

void release_allocation(facility::Context& context, const plan::RoundPlan& plan,
                        const FacilityName& name) {
  for (const plan::FacilityPlan& facility : plan.facilities)
    if (facility.facility == name)
      facility::FacilityDriver(context, plan, facility).release_allocation();
}

}  // namespace xffl::run
