// Global models as differences from the one before, for facilities that hold the one before.
#pragma once

#include <mutex>
#include <optional>
#include <stop_token>

#include "xffl/checkpoint/manifest.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/plan/round_plan.h"

namespace xffl::facility {

/// Whether the facility's jobs unpack models (transfer.pack).
bool unpacks(const config::Facility& facility);

/// Whether an attempt may get its model packed: a round's first attempt, when the facility's update
/// of the round before was accepted, because then its job has checked the model before this one.
/// Other attempts get the whole model. With transfer.pack: auto only when the link limits the push,
/// by the rates in the journal, so that a restart decides the same.
bool takes_packed(const config::Facility& facility, const plan::RoundPlan& plan, int attempt,
                  const StateOf& state);

/// Bytes a second of the newest push before `round` that moved enough bytes for a measurement; none
/// without such a push.
std::optional<double> push_rate(int round, const StateOf& state);

/// The packed models of a run, each made by the first facility that needs it. Thread-safe.
class PackedModels {
 public:
  /// The manifest of RunFolder::packed(round - 1), from which a job makes the input model of
  /// `round` out of the one before; none when packing saves too little or fails, which is logged. A
  /// second caller waits while the first one packs. Throws kCancelled.
  std::optional<checkpoint::Manifest> of(const history::RunFolder& folder, int round,
                                         std::stop_token stop);
  /// Removes the packed models of the rounds up to this one.
  void drop(const history::RunFolder& folder, int round);

 private:
  std::mutex mutex_;
  int round_ = 0;  // of made_
  std::optional<checkpoint::Manifest> made_;
};

}  // namespace xffl::facility
