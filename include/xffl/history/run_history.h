// The history of a run: the state that its events project to, and the store that keeps them.
//
// The projection is pure: the same events give the same state.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/checkpoint/block_hashes.h"
#include "xffl/history/events.h"
#include "xffl/history/progress.h"
#include "xffl/history/run_location.h"
#include "xffl/history/spending.h"
#include "xffl/history/store.h"
#include "xffl/job/job_report.h"
#include "xffl/plan/round_plan.h"

namespace xffl::history {

// One attempt of one facility in one round, by the journal.
struct Attempt {
  int number = 0;
  std::string nonce;  // of its job.json and report.json; empty: an earlier release opened it
  bool pushed = false;
  bool packed = false;            // pushed as differences from the previous model
  int64_t moved_bytes = 0;        // of models, by the push
  double push_seconds = 0;        // for moved_bytes; 0: not recorded
  bool submit_intended = false;   // without job_id: a job may exist
  std::string job_name;           // of submit_intended; empty: not recorded
  std::string job_id;             // empty before the submission's answer
  std::vector<JobId> duplicates;  // other jobs of the same name, cancelled or to be cancelled
  std::optional<std::string> failure;
  bool counts_as_attempt = true;  // the failure counts against policy.max_attempts
  int64_t steps = 0;              // steps that a checkpoint holds
  bool cancel_intended = false;   // a cancellation of its jobs is on record, unconfirmed
};

// An accepted update, or an evaluation.
struct Accepted {
  FacilityName facility;
  int attempt = 0;
  std::string update_sha256;  // empty: an evaluation
  job::JobReport report;
  std::string time_utc{};  // of the event
};

// The time of an accepted update.
struct Acceptance {
  FacilityName facility;
  int attempt = 0;
  std::string time_utc;
};

struct FacilityState {
  std::vector<Attempt> attempts;
  int attempts_before_renewal = 0;  // attempts opened before a user renewed the budget
  std::optional<Accepted> accepted;
  std::optional<std::string> missing;  // the reason; RunResumed resets it

  const Attempt* current() const { return attempts.empty() ? nullptr : &attempts.back(); }
};

// An update in the round's mean.
struct Participant {
  FacilityName facility;
  std::string update_sha256;     // empty: not recorded
  std::optional<double> weight;  // in the mean, not normalized; absent: not recorded
};

struct RoundState {
  bool planned = false;
  bool evaluates = false;            // the round after the last: no training, mean or publication
  std::string first_submission_utc;  // the start of the deadline; of an evaluation: the plan's time
  // Members that left the run at once in this round, with the reason; a later FacilityJoined does
  // not change them.
  std::map<FacilityName, std::string> departed;
  std::set<FacilityName> members;  // of the plan; empty before RoundPlanned
  std::map<FacilityName, FacilityState> facilities;
  std::vector<Participant> participants;  // sorted; empty before ParticipantsFrozen
  std::string model_sha256;               // of the round's global model, once it is aggregated
  std::string master_sha256;
  bool published = false;

  std::vector<std::string> participant_names() const;
};

// A facility that is no member of later rounds.
struct Left {
  std::string reason;
  bool now = false;  // its part of the round in progress ends, too
};

// The reason why the last coordinator left the run; a killed coordinator records none.
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
  std::map<FacilityName, std::string> paused;  // by a user, with the reason
  std::map<FacilityName, Left> left;           // until they join again
  std::set<FacilityName> joined;               // by FacilityJoined, and have not left since
  std::optional<Stopped> stopped;              // none after a coordinator has continued the run
  // The run's last location; none in journals of earlier releases.
  std::optional<RunLocation> location;
  std::optional<StopRuleMet> stop_rule;  // the training ended before the last round
  bool completed = false;
  bool cancelled = false;

  plan::Done done() const;
};

/// Folds the events in order. Throws kCorrupt for an event that decode() rejects, and for an event
/// that cannot follow the earlier events.
RunState replay(const std::vector<StoredEvent>& events);
/// Frees each event once it is applied: the events and the state of a long run take hundreds of
/// megabytes each.
RunState replay(std::vector<StoredEvent>&& events);
void apply(RunState& run_state, const RecordedEvent& recorded);

/// Applies an event of one facility in one round. Returns false for any other event and changes
/// nothing. Throws kCorrupt for an event that cannot have happened.
bool apply(FacilityState& facility, int attempt, const Event& event);

// The limits of read_newest(): whole rounds, at least two.
struct NewestRounds {
  int rounds = 20;
  int64_t events = 3000;
};
/// The state of the run and of its newest rounds, without a lock and in a time that does not grow
/// with the number of rounds: from the events at the end of the journal. The round before them is
/// there without its facilities, for its model. Throws as read_newest_events() and replay().
RunState read_newest(const std::filesystem::path& path, const NewestRounds& limits = {});

// A cancellation that the facility has not confirmed.
struct UnconfirmedCancellation {
  int round = 0;
  std::string job_id;  // empty: unknown
};

/// The journal and its state. Thread-safe: every facility's thread records through it.
///
/// The memory holds the newest rounds and the rounds with unconfirmed cancellations. round() and
/// facility() read older rounds from the journal, so that memory and the work per event do not grow
/// with the number of rounds. Readers do not wait for the disk, unless they ask for an older round.
class RunHistory {
 public:
  /// Opens the journal for writing and replays it. Throws as Store::open() and replay().
  explicit RunHistory(const std::filesystem::path& path);

  /// Records the event durably and updates state(). `scope` is {} for an event of the whole run.
  /// Throws kCorrupt for an event that cannot have happened, without writing to the journal.
  void record(const EventScope& scope, const Event& event);
  /// Records the event if `allows` returns true for the spending before it. No other event comes in
  /// between.
  bool record_if(const EventScope& scope, const Event& event,
                 const std::function<bool(const Spending&)>& allows);

  /// The state with the rounds in memory only: the newest published round, its predecessor, and
  /// later rounds are among them.
  RunState state() const;
  plan::Done done() const;
  RoundState round(int number) const;
  std::optional<std::string> paused(const FacilityName& name) const;
  /// Of the whole run.
  Spending spending() const;
  Progress progress() const;
  /// The reason why the facility's part of the round ends: it left the run at once
  /// (FacilityLeft::now).
  std::optional<std::string> departed(int round, const FacilityName& name) const;
  FacilityState facility(int round, const FacilityName& name) const;
  /// The accepted updates of a round, without their reports.
  std::vector<Acceptance> acceptances(int round) const;
  /// The global model of an aggregated round, or of round 0; empty: none.
  std::string model_sha256(int round) const;
  /// The facility's unconfirmed cancellations in rounds before `before`.
  std::vector<UnconfirmedCancellation> unconfirmed_cancellations(const FacilityName& name,
                                                                 int before) const;

  // --- The writer's epoch: see work_files.h

  int64_t epoch() const { return store_->epoch(); }
  /// Throws kBusy when another coordinator has taken the run over. Each deletion, rename,
  /// submission, cancellation and publication calls it right before.
  void check_writer() { store_->check_writer(); }
  bool is_writer() { return store_->is_writer(); }
  /// The name under which this coordinator writes `path`: work_name() of its epoch.
  std::filesystem::path work_name(const std::filesystem::path& path) const;
  /// Replaces the file `path`: work name, write, fsync, check_writer(), rename.
  void write_file(const std::filesystem::path& path, std::string_view content);
  /// The writer of block hashes and damaged manifests: write_file() of this object. The work file
  /// of "global/manifest.json" is "global.manifest.json.e7.tmp" beside the folder, because any
  /// other file in a model's folder counts as damage.
  checkpoint::FileWriter file_writer();
  /// Gives the folder work_name(path) its name `path`, in place of an earlier folder, after
  /// check_writer().
  void publish_folder(const std::filesystem::path& path);

 private:
  void write_file(const std::filesystem::path& path, std::string_view content,
                  const std::filesystem::path& work_base);

  // A round that the memory no longer holds.
  struct StoredRound {
    int64_t first_seq = 0, last_seq = 0;  // its events are among these
    std::string model_sha256;             // empty while the memory holds the round
  };
  // The effect of an event, not yet in run_state_.
  struct Change {
    std::optional<FacilityState> facility;  // alone, or
    std::optional<RunState> run_state;      // the whole state
    bool is_first_submission = false;
  };

  void record_next(const EventScope& scope, const Event& event);
  void replay_stored(const StoredEvent& stored, std::set<int>& late);
  Change change_by(const RecordedEvent& recorded) const;
  void take(const RecordedEvent& recorded, Change change);
  void note(const RecordedEvent& recorded);
  void forget_old_rounds();
  bool is_forgotten(int round) const;
  RoundState load(int round, const std::string& facility) const;

  std::mutex writer_;         // one record() at a time; taken before mutex_
  mutable std::mutex mutex_;  // the members below; never held while the disk works
  std::unique_ptr<Store> store_;
  RunState run_state_;
  Spending spending_;
  Progress progress_;
  std::map<int, StoredRound> stored_rounds_;
};

}  // namespace xffl::history
