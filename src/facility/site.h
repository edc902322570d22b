// One facility in one round: its plan, connections and paths (Site), and the actions there.
// push_model.cc, job.cc, fetch_and_verify.cc and job_traces.cc implement the actions. Only the
// driver's thread uses these classes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/safetensors.h"
#include "xffl/facility/context.h"
#include "xffl/facility/driver.h"
#include "xffl/facility/kept_allocation.h"
#include "xffl/facility/machine.h"
#include "xffl/job/job_times.h"
#include "xffl/plan/facility_layout.h"
#include "xffl/transfer/transfer.h"

namespace xffl::facility {

/// Turns a facility's wrong answer (a missing file, an invalid SFTP packet, a missing command) into
/// kRemote, the kind of a lost link: a retry may succeed, and the other facilities continue.
template <class Body>
auto at_the_facility(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound &&
        error.kind() != ErrorKind::kUnsupported)
      throw;
    throw Error(ErrorKind::kRemote, error.what());
  }
}

struct Tail {
  std::string text;
  bool is_whole = true;  // the text is the whole file
};
/// The end of a file, at most `count` bytes; empty when there is no file.
Tail last_bytes(remote::Session& session, const RemotePath& path, uint64_t count);
/// The end of a text file, at most `max_bytes`, without secrets; empty when there is no file.
std::string scrubbed_tail(remote::Session& session, const RemotePath& path, size_t max_bytes);
/// The end of a file for users: printable, without secrets.
std::string printable_tail(remote::Session& session, const RemotePath& path);

class Site {
 public:
  Site(Context& context, const plan::RoundPlan& plan, const plan::FacilityPlan& facility);

  job::JobSpec spec(int attempt) const;
  /// The spec for the check of a pushed attempt's report: spec() with the settings of the pushed
  /// job.json, because the configuration may have changed since the push.
  job::JobSpec pushed_spec(int attempt) const;
  RemotePath folder(int attempt) const { return plan::attempt_folder(facility, attempt); }
  RemotePath report_path(int attempt) const { return folder(attempt) / plan::kReportFile; }
  /// The facility's folder of this round in the run folder.
  std::filesystem::path archive() const {
    return context.folder.facility(plan.round, facility.facility);
  }
  std::filesystem::path base_model() const { return context.folder.global(plan.round - 1); }
  /// The model with the round's full shapes: with LoRA the model under the adapter.
  std::filesystem::path full_model() const {
    return plan.adapted_sha256.empty() ? base_model() : context.folder.adapted();
  }
  /// Calls body(hashes) for a body that reads full_model(); see RunModels::with_global().
  template <class Body>
  auto with_full_model(const Body& body) const {
    return plan.adapted_sha256.empty() ? context.models.with_global(plan.round - 1, body)
                                       : context.models.with_adapted(body);
  }
  template <class Body>
  auto with_base_model(const Body& body) const {
    return context.models.with_global(plan.round - 1, body);
  }
  /// The facility's state in the history.
  history::FacilityState state(int round) const {
    return context.history.facility(round, facility.facility);
  }
  StateOf states() const {
    return [this](int round) { return state(round); };
  }
  log::Field name_field() const { return {"facility", facility.facility.str()}; }
  /// Whether the push of the round's open attempt sent the model as differences.
  bool was_packed() const {
    const history::FacilityState known = state(plan.round);
    return known.current() != nullptr && known.current()->packed;
  }
  std::chrono::milliseconds settle_time() const { return scheduler->settle_time(); }
  /// Throws kCancelled on `stop`.
  void sleep(Nanoseconds duration, std::stop_token stop);
  void show(const std::string& activity) {
    context.live.show(plan.round, facility.facility, activity);
  }
  /// Shows the transfer to or from `folder` in the status file, and counts the bytes that the
  /// transfer gains.
  transfer::OnProgress progress(const std::string& activity, const RemotePath& folder);

  Context& context;
  const plan::RoundPlan& plan;
  const plan::FacilityPlan& facility;
  const config::Facility& settings;
  const std::shared_ptr<remote::Session> session;
  const std::shared_ptr<remote::Session> bulk;  // for models and updates
  const std::shared_ptr<submit::Scheduler> scheduler;
  uint64_t gained_bytes = 0;  // by the current action, beyond its earlier tries

 private:
  std::map<std::string, uint64_t> in_place_;  // the most bytes that a try found in place, by folder
};

// Brings the input of a job to the facility: the model and job.json.
class ModelPush {
 public:
  explicit ModelPush(Site& site) : site_(site) {}

  Event push(int attempt, std::stop_token stop);
  /// Sends a waiting job's model again when the site's purge has removed files of the model.
  void restore_purged_model(int attempt, std::stop_token stop);
  /// The job's report of a damaged input model. Empty without such a report, and after an earlier
  /// repair in the round: the job then has to fail.
  std::string input_model_problem(int attempt);
  /// Warns, ahead of the attempt's submission, when the facility lacks space for the job's output.
  /// Only logs a failed check.
  void check_space(int attempt);

 private:
  /// Throws kRemote, so that the facility waits, while its text is not tokenized: the job would
  /// find that after the queue.
  void require_prepared_text();
  /// Pushes the attempt's input model, as differences when `packs`; `spec` names the result. With
  /// `compares` the push compares the files at the facility with the model.
  history::Pushed push_base(int attempt, job::JobSpec& spec, bool packs, bool compares,
                            std::stop_token stop);
  std::optional<history::Pushed> push_packed(int attempt, job::JobSpec& spec, std::stop_token stop);
  std::string model_hashes(const job::JobSpec& spec) const;
  std::vector<int> earlier_attempts_with(int attempt, std::string_view file);
  struct Moved {
    uint64_t bytes = 0;
    double seconds = 0;
  };
  std::optional<Moved> push_differences(const std::filesystem::path& packed,
                                        const checkpoint::Manifest& manifest, const RemotePath& to,
                                        std::stop_token stop);
  Moved push_model(const std::filesystem::path& model, const checkpoint::Manifest& manifest,
                   const RemotePath& to, bool compares, std::stop_token stop);

  Site& site_;
  int space_checked_for_ = 0;                       // the last attempt checked
  std::optional<Clock::MonotonicTime> model_seen_;  // when the model was last whole there
};

// Submits, finds, queries and cancels the facility's job, and releases a kept allocation.
class FacilityJob {
 public:
  explicit FacilityJob(Site& site) : site_(site) {}

  /// Renders the script into the run folder. Returns the event to record before the submission.
  /// Throws kConfig or kNotFound for a wrong or absent template.
  history::SubmitIntended prepare_submission(int attempt);
  /// Throws kIo for a wrong or absent template; no job exists then.
  JobId submit(int attempt, std::stop_token stop);
  /// The attempt's script for a submission by hand, without its command.
  StagedScript staged(int attempt) const;
  /// Writes the script into the attempt's folder, whose input the push has brought.
  StagedScript stage(int attempt);
  std::vector<JobId> find(int attempt, std::stop_token stop);
  /// `decides`: the attempt ends when the scheduler does not know the job.
  submit::JobStatus query(int attempt, const JobId& job, bool decides, std::stop_token stop);
  /// Returns when the scheduler reports that the job has ended or is ending. Throws kRemote when
  /// the job still runs after several cancellations.
  void cancel(int attempt, const JobId& job, std::stop_token stop);
  /// Takes the attempt's claim.
  void fence(int attempt);

  /// The kept allocation that may take this attempt without the queue.
  std::optional<submit::KeptAllocation> kept_allocation(int attempt) const;
  /// Releases the kept allocation of this round's accepted attempt or of the previous round. Best
  /// effort: the allocation expires by itself, so a failure is only logged.
  void release_allocation();

  /// The end of the job's output, for users.
  std::string output_tail(int attempt);
  /// Passes a new line of metrics to the observer. Best effort.
  void show_progress(int attempt);

 private:
  std::string script(int attempt) const;
  /// The folder of the next round's attempt, which may take this job's allocation.
  std::optional<RemotePath> next_folder() const;
  /// The job's name, as on record or for a new job (job_name()).
  std::string name(AttemptNumber attempt) const;
  submit::JobRequest request(int attempt) const;
  /// The job of an attempt with the names under which the scheduler may know the job.
  submit::SubmittedJob submitted(int attempt, const JobId& job) const;

  Site& site_;
  std::string last_metrics_line_;
};

/// The most bytes of an update of these tensors: float32 values, and 64 MiB for the other files.
uint64_t max_update_bytes(const std::vector<checkpoint::TensorSpec>& tensors);

// Brings the facility's update here and verifies it; restores a stored update with damaged files.
class UpdateFetch {
 public:
  explicit UpdateFetch(Site& site) : site_(site) {}

  bool has_reported(int attempt);
  Event fetch(int attempt, std::stop_token stop);
  /// Whether the time of a check or a fetch that began at the given time is over. Thread-safe.
  using IsOver = std::function<bool(std::chrono::steady_clock::time_point)>;
  /// Fetches an accepted update again when its stored files are damaged. Returns the reason when
  /// the facility has lost the update, or stays unreachable for `max_outage` or until `is_over`
  /// returns true. The check of the files and the fetch have a time each, because the check reads a
  /// whole update. Throws kIo when this machine damages the update again, or cannot open its files.
  std::optional<std::string> restore(const history::Accepted& accepted,
                                     std::chrono::seconds max_outage, const IsOver& is_over,
                                     std::stop_token stop);
  /// The largest accepted L2 norm of an update's change; 0: any norm. The first call is slow.
  double max_change() const;

 private:
  struct Report {
    std::string text;
    job::JobReport parsed;
  };
  // The expectations of an update, from files on this machine.
  struct Expected {
    int64_t max_positions = 0;
    uint64_t max_bytes = 0;
    double base_norm = 0, max_change = 0;  // 0: any
    std::string update_sha256;             // empty: any
  };
  /// Reads this machine's files before the facility's, because damage here is not the fault of the
  /// facility.
  Expected expected_update() const;
  /// The most tokens of a training sequence, at most `max_positions`: data.sequence_length, else
  /// the largest figure in the headers of the training shards. `max_positions` for shards that are
  /// not readable from here, and for other files, which only other trainers read.
  int64_t max_sequence_length(int64_t max_positions) const;
  /// The report of this attempt. Throws kRejected for the report of another attempt.
  Report read_report(int attempt, const Expected& expected);
  /// Fetches the report, and fetches the update that the report names into the run folder. Throws
  /// kRemote when the report no longer exists.
  Report bring(int attempt, const Expected& expected, std::stop_token stop);
  /// The fetched update, before and after its publication in the run folder.
  std::filesystem::path stored() const { return site_.archive() / "update"; }
  std::filesystem::path fetched() const;
  /// Whether the run folder holds the whole update, from a coordinator that did not record it.
  bool is_stored(const std::string& update_sha256) const;
  /// Returns the norm of the update's change divided by its model's norm; 0: not measured. Absent
  /// when the bytes of the update or of its model have changed on this machine.
  std::optional<double> check_change(const Report& report, const Expected& expected) const;
  bool is_malformed(const std::string& update_sha256) const;
  double base_norm() const;
  history::Accepted keep_accepted(int attempt, const Report& report) const;
  /// Restores the round's input model, and throws kIo.
  [[noreturn]] void fail_after_damage_here();
  /// Whether the facility answers and has the run's folder, but no report.
  bool has_lost(int attempt) const;
  std::optional<std::string> archive_problem(const std::string& update_sha256) const;

  Site& site_;
  mutable std::optional<int64_t> longest_sequence_;  // in the shards' headers, once they were read
};

// Brings what a job leaves beside its update: its times and its metrics. No decision depends on
// these files, so their absence or a failure costs nothing but the figures.
class JobTraces {
 public:
  explicit JobTraces(Site& site) : site_(site) {}

  /// The times that the attempt's job has written so far, with the difference of the clocks. Absent
  /// when the job has not begun, its script writes no times, or the facility does not answer.
  std::optional<job::JobUsage> usage(int attempt);
  /// Stores the attempt's metrics.jsonl in the run folder unless it is there: whole lines, at most
  /// 64 MiB. Throws only when another coordinator has taken the run over.
  void keep_metrics(int attempt);

 private:
  bool never_started(int attempt) const;
  void read_beats(const RemotePath& claim, std::vector<job::JobStart>& starts) const;
  bool copy_metrics(const RemotePath& from, const std::filesystem::path& work) const;

  Site& site_;
};

}  // namespace xffl::facility
