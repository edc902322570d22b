// The events of a run: one struct per kind, with the fields of its payload on disk.
//
// An event records a fact; its scope names the round, facility and attempt. The store keeps event
// and scope as a row {kind, round, facility, attempt, payload}. Only encode() and decode() know the
// names of kinds and of payload fields. docs/reference/journal_events.md lists the names, and a
// test compares the list with event_fields().
//
// Names on disk never change, because this code also reads the journals of earlier releases. A
// field that an earlier release did not write is optional here, and encode() leaves an absent field
// absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "xffl/base/json.h"
#include "xffl/base/names.h"
#include "xffl/history/run_location.h"
#include "xffl/history/store.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_times.h"

namespace xffl::history {

// --- The run (scope: round 0, no facility) ---------------------------------------------------

// The first event of a run.
struct RunCreated {
  RunName run;
  std::string project;
  std::string secret;         // the seed of the attempts' nonces
  std::string tag;            // of the run's jobs and folders; empty: of an earlier release
  std::string config_sha256;  // of config.resolved.yaml
};

// The folder of the run from this event on.
struct RunPlaced : RunLocation {
  bool adopted = false;  // by `xffl journal adopt`
};

// The run continues with other operational settings. All facilities of an unfinished round get new
// budgets of attempts.
struct ConfigChanged {
  std::string config_sha256;  // of the new config.resolved.yaml
};

// The global model of round 0. With LoRA, model and master are the adapter's.
struct ModelImported {
  std::string model_sha256;    // root of the published model's manifest
  std::string master_sha256;   // root of the fp32 master's manifest
  std::string adapted_sha256;  // LoRA: root for the model under the adapter; empty: no LoRA
};

// A coordinator continues the run. The missing facilities of an unfinished round are tried again
// within their budgets of attempts. After the failure of a round its deadline restarts.
struct RunResumed {
  // Set by this release. Without it (earlier releases) all facilities get new budgets.
  std::optional<bool> keeps_budgets;
};

// The coordinator left the run because of an error; a killed coordinator records no RunStopped.
struct RunStopped {
  std::string kind;  // to_string(ErrorKind)
  std::string reason;
};

struct RunCompleted {
  std::string model_sha256;  // the last published model
};

struct RunCancelled {};

// A rule of policy.stop_when ended the training after the newest published round. The decision
// stays when the rule changes.
struct StopRuleMet {
  std::string rule;    // the key: "no_better_for"
  std::string reason;  // with the figures

  /// "policy.stop_when.no_better_for: the mean ...".
  std::string text() const { return "policy.stop_when." + rule + ": " + reason; }
};

// --- A facility of the run (scope: round 0, facility) ----------------------------------------

// The coordinator submits no job to the facility until FacilityResumed.
struct FacilityPaused {
  std::string reason;
  bool by_budget = false;  // the pause ends by itself when the budget allows the next submission
};

struct FacilityResumed {
  // A user asked for further attempts: the facility gets a new budget in an unfinished round, and
  // after a pause by a budget of node-hours one submission beyond that budget. Not set by earlier
  // releases.
  std::optional<bool> new_budget;
};

// The facility is no member of later rounds until FacilityJoined.
struct FacilityLeft {
  std::string reason;
  bool now = false;  // its part of the round in progress ends, too
};

// The facility is a member from the next round on.
struct FacilityJoined {};

// --- A round (scope: round) ------------------------------------------------------------------

struct RoundPlanned {
  std::string base_sha256;  // the global model that the round begins with
  std::string plan_sha256;  // of format_plan()
  std::vector<FacilityName> facilities;
  bool evaluates = false;  // the round after the last: facilities measure the last model
};

// The updates that the round averages. The three lists have the same order.
struct ParticipantsFrozen {
  std::vector<FacilityName> facilities;
  std::vector<std::string> updates;  // roots of the updates' manifests
  std::vector<double> weights;       // in the mean, not normalized
};

// The round's global model is on this machine's disk.
struct Aggregated {
  std::string model_sha256;   // root of the published model's manifest
  std::string master_sha256;  // root of the fp32 master's manifest
  // The directions of the updates (aggregate::Stepped), in the order of
  // ParticipantsFrozen::facilities; empty: not measured.
  std::vector<double> cosines;
};

// CURRENT points to the round's global model.
struct Published {
  std::string model_sha256;
};

// --- A facility's part of a round (scope: round, facility) -----------------------------------

// The round continues without the facility.
struct FacilityMissing {
  std::string reason;
};

// --- An attempt (scope: round, facility, attempt) --------------------------------------------

struct AttemptOpened {
  std::string nonce;  // of the attempt's job.json and report.json
};

// The model and job.json are at the facility.
struct Pushed {
  int64_t moved_bytes = 0;        // of models
  std::optional<double> seconds;  // for moved_bytes; absent in journals of earlier releases
  int64_t whole_bytes = 0;        // size of the model when it was sent packed; 0: sent whole
};

// A job may exist from here until Submitted.
struct SubmitIntended {
  std::string job_name;
  std::string script_sha256;  // of job.sh
  // The job's nodes, its walltime (0: no limit), and the time for which it keeps its nodes after
  // its report; absent in journals of earlier releases.
  std::optional<int64_t> nodes, walltime_s, keep_s;
};

// The scheduler has accepted the attempt's job.
struct Submitted {
  JobId job_id;
  bool adopted = false;           // found by its name after a submission without an answer
  std::vector<JobId> duplicates;  // other jobs of the same name, which xffl cancels
};

struct AttemptFailed {
  std::string reason;
  // Whether the attempt counts against policy.max_attempts; absent: yes.
  std::optional<bool> counts_as_attempt;
  std::optional<int64_t> steps;        // steps that a checkpoint holds; absent: none
  std::string output;                  // the end of the job's output; empty: there was no job
  std::optional<job::JobUsage> usage;  // absent: no job, or its times are not known
  bool job_may_run = false;            // the scheduler does not know the job's end
};

// The coordinator is about to cancel the attempt's jobs.
struct CancelIntended {};

// The coordinator has cancelled the attempt's jobs.
struct CancelConfirmed {};

// The update, or the evaluation, passed its checks and is on this machine's disk.
struct UpdateAccepted {
  std::string update_sha256;  // root of the update's manifest; empty: an evaluation
  job::JobReport report;
  double change = 0;  // L2 norm of the update's change over its model's; 0: not measured
  std::optional<job::JobUsage> usage;  // absent: the job's times are not known
};

// The files of an accepted update are damaged on this machine, and the facility has lost the
// update, too. The attempt counts as failed; a round without a mean loses its participants.
struct UpdateLost {
  std::string reason;
};

using Event =
    std::variant<RunCreated, RunPlaced, ConfigChanged, ModelImported, RunResumed, RunStopped,
                 RunCompleted, RunCancelled, StopRuleMet, FacilityPaused, FacilityResumed,
                 FacilityLeft, FacilityJoined, RoundPlanned, ParticipantsFrozen, Aggregated,
                 Published, FacilityMissing, AttemptOpened, Pushed, SubmitIntended, Submitted,
                 AttemptFailed, CancelIntended, CancelConfirmed, UpdateAccepted, UpdateLost>;

// Where an event belongs.
struct EventScope {
  int round = 0;                         // 0: the run as a whole
  std::optional<FacilityName> facility;  // none: the round as a whole
  int attempt = 0;                       // 0: the facility's part as a whole
};

struct RecordedEvent {
  int64_t seq = 0;
  std::string time_utc;
  EventScope scope;
  Event event;
};

/// The kind's name on disk: "round_planned".
std::string_view kind_of(const Event& event);

/// The row for the store; Store::append() sets seq and time_utc. Removes secrets from reasons and
/// job output, and replaces text that is not UTF-8.
StoredEvent encode(const EventScope& scope, const Event& event);

/// Throws kCorrupt for a kind that this version does not know and for a malformed payload.
RecordedEvent decode(const StoredEvent& stored);

/// One line of the table: a kind, and all fields that its payload may have, in their order on disk.
struct EventFields {
  std::string_view kind;
  std::vector<std::string_view> fields;
};
std::vector<EventFields> event_fields();

}  // namespace xffl::history
