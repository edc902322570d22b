// The journal's events as a state: what is done, what was begun, what is in doubt.
//
// Pure: the same events give the same state.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/history/events.h"
#include "xffl/history/run_location.h"
#include "xffl/history/store.h"
#include "xffl/job/job_report.h"
#include "xffl/plan/round_plan.h"

namespace xffl::history {

// One attempt of one facility in one round, as far as the journal knows.
struct Attempt {
  int number = 0;
  std::string nonce;  // of its job.json and report.json; empty: an earlier release opened it
  bool pushed = false;
  bool packed = false;      // ... its model as differences from the last one
  int64_t moved_bytes = 0;  // ... of models, and how long that took, where it was noted
  double push_seconds = 0;
  bool submit_intended = false;    // and not submitted: it is in doubt whether a job exists
  std::string job_id;              // once submitted
  std::vector<std::string> twins;  // of its job: found beside it, and cancelled or to be
  std::optional<std::string> failure;
  bool charged = true;           // the failure counts against policy.max_attempts
  int64_t steps = 0;             // done before it was stopped, and kept in a checkpoint
  bool cancel_intended = false;  // its job is to be cancelled, and it is not known that it was
};

// An accepted update, or an evaluation.
struct Accepted {
  FacilityName facility;
  int attempt = 0;
  std::string update_sha256;  // empty of an evaluation
  job::JobReport report;
};

struct FacilityState {
  std::vector<Attempt> attempts;
  int attempts_before_resume = 0;  // opened before the last explicit `xffl run` after a failure
  std::optional<Accepted> accepted;
  std::optional<std::string> missing;  // why; reset when the run is resumed

  const Attempt* current() const { return attempts.empty() ? nullptr : &attempts.back(); }
};

// An update that is averaged.
struct Participant {
  FacilityName facility;
  std::string update_sha256;     // empty: not recorded
  std::optional<double> weight;  // in the mean, not normalized; absent: not recorded
};

struct RoundState {
  bool planned = false;
  bool evaluates = false;  // after the last round: nothing is trained, aggregated or published
  std::string first_submission_utc;  // when the deadline began to run
  std::map<FacilityName, FacilityState> facilities;
  std::vector<Participant> participants;  // frozen, sorted; empty until then
  std::string model_sha256;               // aggregated
  std::string master_sha256;
  bool published = false;

  std::vector<std::string> participant_names() const;
};

// Why the last coordinator left the run, by its own word; one that was killed says nothing.
struct Stopped {
  std::string time_utc;
  std::string kind;  // to_string(ErrorKind)
  std::string reason;
};

struct RunState {
  std::optional<plan::RunIdentity> identity;
  std::string project;
  std::string config_sha256;
  std::string initial_sha256;  // global model of round 0
  std::string initial_master_sha256;
  std::string adapted_sha256;                  // with LoRA: the model under the adapter
  std::map<int, RoundState> rounds;            // 1-based
  std::map<FacilityName, std::string> paused;  // by a person, and why
  std::optional<Stopped> stopped;              // nothing since a coordinator continued
  std::optional<RunLocation>
      place;  // where it was last worked on; none in journals of earlier releases
  bool completed = false;
  bool cancelled = false;

  plan::Done done() const;
};

/// Folds the events in order. Throws kCorrupt for an event that decode() refuses, and for one that
/// cannot have happened in the state that the events before it make.
RunState replay(const std::vector<StoredEvent>& events);
void apply(RunState& run_state, const RecordedEvent& recorded);

/// The part of apply() that concerns one facility in one round. False for any other event: the
/// state is unchanged. Throws kCorrupt for an event that cannot have happened.
bool apply(FacilityState& facility, int attempt, const Event& event);

}  // namespace xffl::history
