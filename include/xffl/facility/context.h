// The objects and caches that all parts of a run share.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "xffl/aggregate/aggregate.h"
#include "xffl/base/spare_memory.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/facility_errors.h"
#include "xffl/facility/packed_models.h"
#include "xffl/facility/services.h"
#include "xffl/history/run_folder.h"
#include "xffl/plan/round_plan.h"
#include "xffl/transfer/transfer.h"

namespace xffl::facility {

// The time of each round's first submission by this coordinator, on the monotonic clock, because
// the wall clock may jump. Thread-safe.
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

// Computes the L2 norm of a round's input model, and caches the newest norm. Thread-safe.
class ModelNorms {
 public:
  double of(const std::filesystem::path& model) {
    const std::lock_guard lock(mutex_);
    if (model != model_) norm_ = aggregate::l2_norm(model);
    model_ = model;
    return norm_;
  }

 private:
  std::mutex mutex_;
  std::filesystem::path model_;  // the model of norm_
  double norm_ = 0;
};

struct Context {
  const config::Experiment& experiment;
  const history::RunFolder& folder;
  Services& services;
  const Observer& observer;
  history::RunHistory& history;
  history::StatusFile& live;
  plan::RunIdentity identity;
  transfer::CheckedFiles checked;  // of the global models
  std::mutex observer_mutex;       // serializes the observer's calls
  FirstSubmissions first_submissions{};
  SpareMemory spare{};  // from earlier rounds' files
  ModelNorms norms{};
  PackedModels packed{};
  GuardedSessions guarded{};
};

}  // namespace xffl::facility
