// The story of a run, from its first event to its newest one: the data of `xffl report`.
//
// A RunStory is a value: make_story() computes it from events alone, and collect_story() adds the
// files of the run folder. Reading a run takes no lock and writes nothing. An absent value has not
// been measured; no figure stands for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/history/kept_checks.h"
#include "xffl/history/run_folder.h"
#include "xffl/history/run_history.h"
#include "xffl/history/store.h"
#include "xffl/job/job_report.h"
#include "xffl/job/job_times.h"
#include "xffl/status/status.h"
#include "xffl/usage/ledger.h"

namespace xffl::report {

using Time = Clock::UtcTime;

/// The parts of an attempt's time, in their order. A time of the facility is its clock minus the
/// clock offset of the attempt.
enum class Phase {
  kSending,   // the attempt began; model and job.json go to the facility; submission
  kQueue,     // the scheduler has the job; no start of the job is on record
  kLoading,   // the job began; its ranks are not launched yet
  kTraining,  // the ranks run: loading, training, measuring, saving
  kFetching,  // the ranks have ended; the update is checked and fetched
  kJob,       // from the submission to the end of the attempt, where the job left no times
  kLost,      // an attempt without an accepted update
  kWaiting,   // the update is here; the round's mean waits for other facilities
};
inline constexpr int kNumPhases = 8;
std::string_view name_of(Phase phase);

struct Span {
  Phase phase = Phase::kJob;
  Time begin, end;
};

enum class Outcome { kOpen, kAccepted, kFailed, kLost };
std::string_view name_of(Outcome outcome);

struct AttemptStory {
  int round = 0;
  FacilityName facility;
  int number = 0;
  std::optional<Time> opened, pushed, submitted, ended;
  int64_t accepted_seq = 0;            // the event that accepted the update; 0: none
  std::string job_id;                  // empty: no job
  int64_t moved_bytes = 0;             // of models, by the push
  int64_t whole_bytes = 0;             // of a model that was sent packed; 0: sent whole
  std::optional<double> push_seconds;  // for moved_bytes
  Outcome outcome = Outcome::kOpen;
  std::string reason;                    // of a failure or a loss
  std::optional<job::JobReport> report;  // of an accepted update
  std::optional<double> change;          // L2 norm of the update's change over its model's
  std::optional<double> cosine;          // between the update and the sum of the round's others
  std::optional<job::JobUsage> usage;
  std::vector<Span> spans;  // without gaps, from `opened` on
};

struct RoundStory {
  int number = 0;
  bool evaluates = false;  // the round after the last: the facilities measure the last model
  std::optional<Time> planned, frozen, aggregated, published;
  int64_t published_seq = 0;  // the event `published`; 0: not published
  std::vector<FacilityName> members;
  std::vector<history::Participant> participants;
  std::map<FacilityName, std::string> missing;  // with the reason
  std::string model_sha256, master_sha256;
  /// history::Spending of the run at the publication; empty: not published.
  std::map<FacilityName, double> node_seconds{};
  /// The facility whose update came last, of a published round.
  std::optional<FacilityName> last;
};

// A coordinator's time with the run.
struct CoordinatorStory {
  Time began;
  std::optional<Time> ended;  // absent: not recorded
  std::string end;            // for users; empty: it holds the run, or its end is unknown
};

struct Incident {
  Time time;
  int round = 0;  // 0: the run as a whole
  std::optional<FacilityName> facility;
  int attempt = 0;
  std::string job_id;
  std::string kind;  // "attempt failed", "facility missing", ...
  std::string reason;
  std::string followed;  // the consequence, for users
  /// The node-seconds of a failed attempt, a lost update or a requeued start; absent for other
  /// incidents.
  std::optional<usage::Amount> lost{};
};

// An action of the user that the run waits for.
struct Need {
  std::string text;
  std::string command;  // empty: none
};

// One line of an attempt's metrics.
struct StepLoss {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> learning_rate, grad_norm, tokens_per_second;
};

struct RunStory {
  std::string run, project, version;
  std::string state;        // "running", "stopped", "completed", "cancelled"
  std::string coordinator;  // the process that holds the run; empty: none
  int rounds_planned = 0;   // 0: unknown
  int rounds_published = 0;
  int64_t num_events = 0;
  Time written, first_event, last_event;
  std::string config_sha256, model_sha256;
  std::optional<history::StopRuleMet> stop_rule;  // no round follows
  std::vector<FacilityName> facilities;
  std::vector<CoordinatorStory> coordinators;
  std::map<int, RoundStory> rounds;
  std::vector<AttemptStory> attempts;  // in the order of their opening
  std::vector<Incident> incidents;     // by time
  std::vector<Need> needs;
  std::vector<status::GlobalLoss> losses;  // of the published models
  history::Activities live;
  usage::Ledger ledger;  // the node-hours
  /// Times of jobs outside their attempts, or before an earlier time of their job, by more than the
  /// clocks' errors; they count as the nearest time that is possible.
  int clock_anomalies = 0;
  /// The training losses of the accepted attempts, by step.
  std::map<FacilityName, std::vector<StepLoss>> step_losses;
  std::vector<history::KeptCheck> checks;  // of the user's verifications; empty: never verified
  std::vector<std::string> notes;          // files that were not read, with the reason

  /// The newest published round that all checks that were made cover; -1: never verified.
  int verified_round() const;
  /// From the first event to the newest one, or to the report while a coordinator holds the run.
  std::chrono::nanoseconds elapsed() const;
};

struct StoryContext {
  std::string run, version;
  std::string coordinator;  // status::RunStatus::coordinator
  int rounds_planned = 0;
  Time now;
  history::Activities live{};
  std::optional<Time> last_sign{};  // status::RunStatus::last_sign
  usage::GpusPerNode gpus{};
  usage::Accounting accounting{};
  std::map<FacilityName, status::EndingCredential> credentials{};
};

/// Pure. Throws kCorrupt as history::replay().
RunStory make_story(const std::vector<history::StoredEvent>& events, const StoryContext& context);

/// make_story() of the run in `folder`, with its archived metrics: at most kMaxMetricsBytes of
/// them, the newest rounds first. A file that cannot be read becomes a note. Sets `run`,
/// `coordinator`, `live` and `last_sign` of the context. Throws kNotFound when the folder has no
/// journal, and as history::read_events().
inline constexpr uint64_t kMaxMetricsBytes = 64u << 20;
RunStory collect_story(const history::RunFolder& folder, StoryContext context);

/// The text of an attempt's metrics. Throws kNotFound, kIo, and kRejected unless the file is a
/// regular file of at most `max_bytes`.
std::string read_metrics(const std::filesystem::path& path, uint64_t max_bytes = kMaxMetricsBytes);

/// The losses of a metrics file. Skips each line that is not a JSON object with a step and a finite
/// loss.
std::vector<StepLoss> parse_metrics(std::string_view text);

/// The time that each phase took at a facility, over all attempts.
std::map<Phase, std::chrono::nanoseconds> time_by_phase(const RunStory& story,
                                                        const FacilityName& facility);

/// A mean loss of the global model: over the sets of all facilities, by predicted tokens. Only a
/// model that was measured on all sets of the run has one.
struct MeanLoss {
  int round = 0;
  double nll = 0;
};
std::vector<MeanLoss> mean_losses(const RunStory& story);

/// Incidents with the same reason, digits apart.
struct IncidentGroup {
  std::string kind, reason;  // the reason of the first one
  int count = 0;
  std::vector<FacilityName> facilities;  // sorted
  std::optional<usage::Amount> lost{};   // the sum over the incidents that have one
};
std::vector<IncidentGroup> grouped(const std::vector<Incident>& incidents);

}  // namespace xffl::report
