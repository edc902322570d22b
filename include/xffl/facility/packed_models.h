// Global models as differences from the previous global model, for facilities that hold the
// previous model.
#pragma once

#include <functional>
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

/// Whether the facility's jobs can unpack models, by transfer.pack and the trainer.
bool unpacks(const config::Facility& facility);

/// Whether an attempt may get its model packed. A round's first attempt may, after an accepted
/// update of the facility in the previous round, because the job of that update has checked the
/// previous model. Other attempts get the whole model. With transfer.pack: auto, the rates in the
/// journal must also show that the link limits the push; a restarted coordinator therefore decides
/// in the same way.
bool takes_packed(const config::Facility& facility, const plan::RoundPlan& plan, int attempt,
                  const StateOf& state);

/// Bytes per second of the newest push before `round` that moved enough bytes for a measurement, if
/// any.
std::optional<double> push_rate(int round, const StateOf& state);

// The manifests of a round's input model and of the model before it, which is its reference.
struct PackingManifests {
  checkpoint::Manifest model, reference;
};

/// The packed models of a run. The first facility that needs a model packs it. Thread-safe.
class PackedModels {
 public:
  /// `suffix` ends the folders' names: history::work_suffix(), because a coordinator packs anew.
  explicit PackedModels(std::string suffix = "") : suffix_(std::move(suffix)) {}

  /// RunFolder::packed(round - 1) with the suffix.
  std::filesystem::path path(const history::RunFolder& folder, int round) const {
    return folder.packed(round - 1).string() + suffix_;
  }
  /// The manifest of path(), the differences from which a job makes the input model of `round`.
  /// None when packing saves too little or fails; the log has the reason. A second caller waits
  /// while the first caller packs. Calls `manifests` before it packs: the global model of `round` -
  /// 2 has to be the one that the facilities hold, and a damaged manifest.json on this machine
  /// would cost each facility a job. Empty: the manifest.json of both folders. Throws kCancelled on
  /// `stop`, also while it waits for another caller.
  std::optional<checkpoint::Manifest> of(const history::RunFolder& folder, int round,
                                         std::stop_token stop,
                                         const std::function<PackingManifests()>& manifests = {});
  /// Removes the packed models of the rounds before `round`.
  void drop(const history::RunFolder& folder, int round);

 private:
  const std::string suffix_;
  std::timed_mutex mutex_;  // held while a caller packs
  int round_ = 0;           // the round of made_
  std::optional<checkpoint::Manifest> made_;
};

}  // namespace xffl::facility
