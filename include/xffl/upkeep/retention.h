// What no round needs any more leaves the facilities' scratch space and this machine.
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

// Removes the rounds up to the published one - policy.keep_rounds from every facility, with the
// models that only they used, and their masters here, while the next round goes on: a parallel file
// system may take minutes for one folder. Failing harms nothing: it is logged, and done again after
// the next round. A run that continues begins by looking for all that may lie there.
class RetentionWorker {
 public:
  explicit RetentionWorker(facility::Context& context);
  /// Interrupts what is under way.
  ~RetentionWorker();

  /// `plan`'s model was published. Returns at once.
  void after(const plan::RoundPlan& plan);
  /// The same of the last round that was published before this coordinator began, if there was one.
  void after_last();
  /// Returns when everything was tried, what failed last once more; or on `stop`.
  void finish(std::stop_token stop);

 private:
  void work(const std::stop_token& stop);
  bool clean(const plan::RoundPlan& plan, const std::stop_token& stop);
  void clean(const plan::RoundPlan& plan, const plan::FacilityPlan& facility,
             const std::stop_token& stop);

  facility::Context& context_;
  // Facilities at which nothing of more rounds than the last may lie: their folders are not listed.
  // Of the thread alone.
  std::set<FacilityName> tidy_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<plan::RoundPlan> next_, failed_;
  bool busy_ = false;
  bool tidy_lost_ = false;
  std::jthread thread_;
};

}  // namespace xffl::upkeep
