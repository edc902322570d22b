// The objects and caches that all parts of a run share.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>

#include "xffl/aggregate/aggregate.h"
#include "xffl/base/spare_memory.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/facility_errors.h"
#include "xffl/facility/packed_models.h"
#include "xffl/facility/run_models.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/history/work_files.h"
#include "xffl/plan/round_plan.h"

namespace xffl::facility {

// The time of each round's first submission by this coordinator, on the monotonic clock, because
// the wall clock may jump; of an evaluation, the time of its plan. Thread-safe.
class FirstSubmissions {
 public:
  void note(int round, Clock::MonotonicTime when) {
    const std::lock_guard lock(mutex_);
    when_.emplace(round, when);
  }
  std::optional<Clock::MonotonicTime> of(int round) const {
    const std::lock_guard lock(mutex_);
    const auto found = when_.find(round);
    return found == when_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, Clock::MonotonicTime> when_;
};

// The times at which this coordinator accepted updates, on the monotonic clock. Thread-safe.
class AcceptanceTimes {
 public:
  void note(int round, const FacilityName& facility, int attempt, Clock::MonotonicTime when) {
    const std::lock_guard lock(mutex_);
    if (round != round_) when_.clear();
    round_ = round;
    when_.emplace(std::pair(facility, attempt), when);
  }
  std::optional<Clock::MonotonicTime> of(int round, const FacilityName& facility,
                                         int attempt) const {
    const std::lock_guard lock(mutex_);
    const auto found = when_.find(std::pair(facility, attempt));
    return round != round_ || found == when_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::mutex mutex_;
  int round_ = 0;  // the newest round; a round ends before the next one begins
  std::map<std::pair<FacilityName, int>, Clock::MonotonicTime> when_;
};

// Wakes the facilities' threads when the end of their round may have changed: an update was
// accepted at another facility. Thread-safe.
class RoundChanges {
 public:
  /// Stops at the next announce().
  std::stop_token next() const {
    const std::lock_guard lock(mutex_);
    return next_.get_token();
  }
  void announce() {
    std::stop_source now;
    {
      const std::lock_guard lock(mutex_);
      std::swap(now, next_);
    }
    now.request_stop();
  }

 private:
  mutable std::mutex mutex_;
  std::stop_source next_;
};

// Computes the L2 norm of a round's input model, and caches the newest norm. Thread-safe.
class ModelNorms {
 public:
  /// Throws kCorrupt when the model differs from `hashes`.
  double of(const std::filesystem::path& model, const checkpoint::Hashes& hashes) {
    const std::lock_guard lock(mutex_);
    if (model != model_) norm_ = aggregate::l2_norm(model, hashes);
    model_ = model;
    return norm_;
  }

 private:
  std::mutex mutex_;
  std::filesystem::path model_;  // the model of norm_
  double norm_ = 0;
};

// The warnings that this coordinator has logged. Thread-safe.
class LoggedOnce {
 public:
  bool is_first(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return logged_.insert(what).second;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> logged_;
};

struct Context {
  const config::Experiment& experiment;
  const history::RunFolder& folder;
  Services& services;
  const Observer& observer;
  history::RunHistory& history;
  history::StatusFile& live;
  plan::RunIdentity identity;
  std::mutex observer_mutex{};  // serializes the observer's calls
  FirstSubmissions first_submissions{};
  AcceptanceTimes acceptance_times{};
  RoundChanges round_changes{};
  std::atomic<int> quorum_logged{0};  // the last round whose quorum is in the log
  LoggedOnce budget_warnings{};       // by the budget's key
  SpareMemory spare{};                // from earlier rounds' files
  ModelNorms norms{};
  PackedModels packed{history::work_suffix(history.epoch())};
  RunModels models{experiment, folder, history};
  GuardedSessions guarded{};
};

}  // namespace xffl::facility
