// Removes old rounds from the facilities' scratch space and from this machine.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <stop_token>

#include "xffl/base/names.h"
#include "xffl/plan/round_plan.h"
#include "xffl/upkeep/local_retention.h"

namespace xffl::facility {
struct Context;
}

namespace xffl::upkeep {

/// The longest wait for removals at the end of a run.
inline constexpr std::chrono::seconds kLastRemovals{120};

// Removes the rounds up to (published round - policy.keep_rounds) from every facility, with the
// models that only these rounds used, and old files from this machine (LocalRetention). Each
// facility has its own thread, which works during the next rounds: a parallel file system may take
// minutes for one folder, and a slow facility delays no other. A worker logs a failure and retries
// after the next round. After a restart a worker first searches the folders for older rounds. The
// destructor interrupts all removals.
class RetentionWorker {
 public:
  explicit RetentionWorker(facility::Context& context);
  ~RetentionWorker();

  /// Starts the removals due after the publication of `plan`'s model. Returns at once.
  void after(const plan::RoundPlan& plan);
  /// Calls after() for the last round that an earlier coordinator published, if any.
  void after_last();
  /// Waits until all removals were tried, with one retry of the last failures; at most until
  /// `stop`, and at most for `patience`. Logs the facilities whose removals are not complete then.
  void finish(std::stop_token stop, std::chrono::nanoseconds patience = kLastRemovals);

 private:
  class Worker;

  facility::Context& context_;
  LocalRetention local_;
  std::unique_ptr<Worker> here_;
  std::map<FacilityName, std::unique_ptr<Worker>> facilities_;
};

}  // namespace xffl::upkeep
