// Computes the plan of the next round from the experiment and the finished rounds. The functions
// are pure: the same inputs give the same plan, byte for byte.
//
// Nonces are functions of the inputs, too (of the run's secret): a restarted coordinator plans the
// same jobs as before.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/job/job_spec.h"

namespace xffl::config {
struct Experiment;
struct RoundPolicy;
}  // namespace xffl::config

namespace xffl::plan {

/// The coordinator draws the secret and the tag when it creates a run, and keeps the identity in
/// the run's journal.
struct RunIdentity {
  RunName run;
  std::string secret;  // 32 hexadecimal digits; known to the coordinator only
  std::string tag{};   // 8 hexadecimal digits, in names that other users of a facility see

  /// "<run>-<tag>": differs between two clones of a project, whose runs have the same numbers. A
  /// run of a release without tags has the first 8 digits of the secret instead.
  std::string unique_name() const;
};

/// The batch job's name of an attempt, "xffl-<project>-<run>-<tag>-r0002-<facility>-a1".
/// Schedulers hold back a second job of the same name and account (--dependency=singleton).
std::string job_name(const RunIdentity& identity, const job::JobKey& key);

/// The finished rounds, according to the journal.
struct Done {
  int rounds_published = 0;
  std::string model_sha256;  // manifest root hash of the newest global model
  /// The attempts whose updates were accepted in the newest published round.
  std::map<FacilityName, int> accepted;
  // With LoRA the global model is an adapter, and adapted_sha256 is the hash of the adapter's base
  // model; else empty.
  std::string adapted_sha256{};
  bool run_completed = false;        // the evaluation of the last model is complete
  std::set<FacilityName> left{};     // no members of a round that is not planned yet
  std::set<FacilityName> members{};  // of the next round, when it is planned already; else empty
  bool stop_rule_met = false;        // no round trains after the newest published one
};

struct FacilityPlan {
  FacilityName facility;
  RemotePath folder;        // the facility folder; see facility_layout.h for all four
  RemotePath model_folder;  // of the global model
  RemotePath round_folder;
  RemotePath adapted_folder{};  // with LoRA: of the adapter's base model
  int accepted_before = 0;      // the attempt accepted in the previous round; 0: none
};

// A round of the members of the run at its plan.
struct RoundPlan {
  int round = 1;
  std::string base_sha256;               // the global model or adapter that this round trains
  std::string adapted_sha256;            // with LoRA: the adapter's base model; else empty
  std::vector<FacilityPlan> facilities;  // sorted by name
  int quorum = 1;                        // the number of updates that aggregation needs
  // After the last round: the jobs evaluate the last global model and train nothing.
  bool evaluates = false;
};

/// Whether the facility takes part in the next round.
bool is_member(const Done& done, const FacilityName& facility);

/// The next round, of its members. After `experiment.rounds` rounds or a met rule of
/// policy.stop_when, and with policy.evaluate_last, the next round is one evaluation by the
/// facilities with validation sets. Afterwards there is no next round.
std::optional<RoundPlan> next_round(const config::Experiment& experiment,
                                    const RunIdentity& identity, const Done& done);

/// The updates that the aggregation of a round with so many members needs.
int quorum(const config::RoundPolicy& policy, int members);

/// The job of one attempt. At every facility, also at a facility that missed a round, the
/// learning-rate schedule and the data continue at first_step = (round - 1) * steps. With
/// training.keep_optimizer, optimizer_path is <folder>/optimizer/r0001-<nonce of the attempt
/// accepted in the previous round>, or .../none. The job of an evaluation has 0 steps and no
/// train_paths.
job::JobSpec job_spec(const config::Experiment& experiment, const RunIdentity& identity,
                      const RoundPlan& plan, const FacilityPlan& facility, int attempt);

/// The plan as JSON with fixed key order; the journal keeps the hash of the JSON.
std::string format_plan(const RoundPlan& plan);

}  // namespace xffl::plan
