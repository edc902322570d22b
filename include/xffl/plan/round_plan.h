// Experiment + what is done -> what the next round does. Pure: the same inputs give the same plan,
// byte for byte.
//
// Even nonces are functions of the inputs (of the run's secret, drawn once), so that a coordinator
// that was killed plans the very jobs that it had planned before.
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

/// What the journal says is finished.
struct Done {
  int rounds_published = 0;
  std::string model_sha256;  // manifest root hash of the newest global model
  /// The attempts whose updates were accepted in the newest published round.
  std::map<FacilityName, int> accepted;
  // With LoRA the global model is the adapter, and this the model that it belongs to; else empty.
  std::string adapted_sha256{};
  bool run_completed = false;  // nothing is measured any more
};

struct FacilityPlan {
  FacilityName facility;
  RemotePath folder;            // <workdir>/<project>/<run>-<secret8>/<facility>
  RemotePath model_folder;      // <folder>/models/<first 16 digits of the model's hash>
  RemotePath round_folder;      // <folder>/r0002
  RemotePath adapted_folder{};  // with LoRA: <folder>/models/... of the model under the adapter
  int accepted_before = 0;      // the attempt accepted in the round before; 0: none
};

struct RoundPlan {
  int round = 1;
  std::string base_sha256;               // what this round trains: the global model, or adapter
  std::string adapted_sha256;            // with LoRA: the model under the adapter; else empty
  std::vector<FacilityPlan> facilities;  // sorted by name
  int quorum = 1;                        // updates needed to aggregate
  // After the last round: its facilities measure the last global model and train nothing.
  bool evaluates = false;
};

/// The next round; when all of `experiment.rounds` are published, with policy.evaluate_last one
/// more of the facilities that have validation sets, which evaluates; then nothing.
std::optional<RoundPlan> next_round(const config::Experiment& experiment,
                                    const RunIdentity& identity, const Done& done);

/// The attempt's folder: <round_folder>/a1.
RemotePath attempt_folder(const FacilityPlan& plan, int attempt);
/// The same of any round of the facility.
RemotePath attempt_folder(const FacilityPlan& plan, int round, int attempt);

/// The job of one attempt. Learning-rate schedule and data continue where the previous round ended:
/// first_step is (round - 1) * steps for every facility, so one that missed a round is in step with
/// the others. With training.keep_optimizer, optimizer_path is
/// <folder>/optimizer/r0001-<nonce of the attempt accepted in the round before>, or .../none. Of a
/// plan that evaluates it has 0 steps and no train_paths.
job::JobSpec job_spec(const config::Experiment& experiment, const RunIdentity& identity,
                      const RoundPlan& plan, const FacilityPlan& facility, int attempt);

/// JSON with fixed key order: what `xffl plan` shows and the journal keeps the hash of.
std::string format_plan(const RoundPlan& plan);

}  // namespace xffl::plan
