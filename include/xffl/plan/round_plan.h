// Experiment + finished rounds -> the plan of the next round. Pure: the same inputs give the same
// plan, byte for byte.
//
// Nonces are functions of the inputs, too (of the run's secret): a coordinator that is restarted
// plans the same jobs as before.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/config/experiment.h"
#include "xffl/job/job_spec.h"

namespace xffl::plan {

/// Drawn when a run is created and kept in its journal.
struct RunIdentity {
  RunName run;
  std::string secret;  // 32 hexadecimal digits
};

/// The finished rounds, by the journal.
struct Done {
  int rounds_published = 0;
  std::string model_sha256;  // manifest root hash of the newest global model
  /// The attempts whose updates were accepted in the newest published round.
  std::map<FacilityName, int> accepted;
  // With LoRA the global model is an adapter, and this is the hash of its base model; else empty.
  std::string adapted_sha256{};
  bool run_completed = false;  // the last model has been evaluated
};

struct FacilityPlan {
  FacilityName facility;
  RemotePath folder;        // the facility folder; see facility_layout.h for all four
  RemotePath model_folder;  // of the global model
  RemotePath round_folder;
  RemotePath adapted_folder{};  // with LoRA: of the adapter's base model
  int accepted_before = 0;      // the attempt accepted in the round before; 0: none
};

struct RoundPlan {
  int round = 1;
  std::string base_sha256;               // the global model or adapter that this round trains
  std::string adapted_sha256;            // with LoRA: the adapter's base model; else empty
  std::vector<FacilityPlan> facilities;  // sorted by name
  int quorum = 1;                        // updates needed to aggregate
  // After the last round: the jobs evaluate the last global model and train nothing.
  bool evaluates = false;
};

/// The next round. After `experiment.rounds` rounds, with policy.evaluate_last: one evaluation by
/// the facilities that have validation sets. Then nothing.
std::optional<RoundPlan> next_round(const config::Experiment& experiment,
                                    const RunIdentity& identity, const Done& done);

/// The job of one attempt. The learning-rate schedule and the data continue at first_step =
/// (round - 1) * steps at every facility, also at one that missed a round. With
/// training.keep_optimizer, optimizer_path is <folder>/optimizer/r0001-<nonce of the attempt
/// accepted in the previous round>, or .../none. The job of an evaluation has 0 steps and no
/// train_paths.
job::JobSpec job_spec(const config::Experiment& experiment, const RunIdentity& identity,
                      const RoundPlan& plan, const FacilityPlan& facility, int attempt);

/// JSON with fixed key order; the journal keeps its hash.
std::string format_plan(const RoundPlan& plan);

}  // namespace xffl::plan
