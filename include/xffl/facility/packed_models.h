// Global models as their differences from the one before, for facilities that hold that one.
#pragma once

#include <mutex>
#include <optional>
#include <stop_token>

#include "xffl/checkpoint/manifest.h"
#include "xffl/config/experiment.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_state.h"
#include "xffl/plan/round_plan.h"

namespace xffl::facility {

/// Whether the facility's jobs unpack models (transfer.pack).
bool unpacks(const config::Facility& facility);

/// Whether an attempt may be given its model packed: a round's first, where the facility's update
/// of the round before was accepted, so that its job had checked the model before this one; the
/// others get it whole. With transfer.pack: auto only where the link is what a model waits for, as
/// far as the journal knows, so that a restart decides the same.
bool takes_packed(const config::Facility& facility, const plan::RoundPlan& plan, int attempt,
                  const StateOf& state);

/// Bytes a second of models on their way to the facility: of the newest push before `round` that
/// moved enough to tell. Empty: none did.
std::optional<double> push_rate(int round, const StateOf& state);

/// The packed models of a run, each made by the first facility that needs it. Thread-safe.
class PackedModels {
 public:
  /// The manifest of RunFolder::packed(round - 1), which makes the model that `round` begins with
  /// out of the one before; none when that would save too little, or could not be done, which is
  /// logged. Who comes while another makes it waits. Throws kCancelled.
  std::optional<checkpoint::Manifest> of(const history::RunFolder& folder, int round,
                                         std::stop_token stop);
  /// Removes what was made for the rounds up to this one.
  void drop(const history::RunFolder& folder, int round);

 private:
  std::mutex mutex_;
  int round_ = 0;  // that made_ is of
  std::optional<checkpoint::Manifest> made_;
};

}  // namespace xffl::facility
