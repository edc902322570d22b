// Removes old rounds from the facilities' scratch space and from this machine.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>

#include "xffl/base/names.h"
#include "xffl/plan/round_plan.h"

namespace xffl::facility {
struct Context;
}

namespace xffl::upkeep {

// Removes the rounds up to (published round - policy.keep_rounds) from every facility, with the
// models that only these rounds used, and the rounds' masters from this machine. Works in a thread
// during the next round, because a parallel file system may take minutes for one folder. The worker
// logs a failure and retries after the next round. After a restart the worker first searches the
// folders for older rounds. The destructor interrupts a removal.
class RetentionWorker {
 public:
  explicit RetentionWorker(facility::Context& context);

  /// Starts the removals due after the publication of `plan`'s model. Returns at once.
  void after(const plan::RoundPlan& plan);
  /// Calls after() for the last round that an earlier coordinator published, if any.
  void after_last();
  /// Waits until the worker has tried all removals, with one retry of the last failure; or until
  /// `stop`.
  void finish(std::stop_token stop);

 private:
  void work(const std::stop_token& stop);
  bool clean(const plan::RoundPlan& plan, const std::stop_token& stop);
  void clean(const plan::RoundPlan& plan, const plan::FacilityPlan& facility,
             const std::stop_token& stop);

  facility::Context& context_;
  // Facilities without rounds older than the last round: the worker need not list their folders.
  // Only the worker's thread uses the set.
  std::set<FacilityName> tidy_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<plan::RoundPlan> next_, failed_;
  bool busy_ = false;
  bool round_skipped_ = false;
  std::jthread thread_;
};

}  // namespace xffl::upkeep
