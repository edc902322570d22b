// A facility's batch system. One of the four interfaces with side effects
// (docs/developer/architecture.md).
//
// A job that the scheduler does not mention is kUnknown, never finished: only the report in the
// job's folder shows that its training succeeded. submit() throws kRemote when the scheduler's
// answer was lost. The caller then searches for the job by its name, after a settle time, before it
// submits again; the job's claim (docs/reference/job_json.md) makes a second start harmless.
// Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/names.h"
#include "xffl/remote/session.h"
#include "xffl/submit/clock_offset.h"

namespace xffl::submit {

enum class JobState {
  kUnknown,    // not mentioned, or in a state that this version does not know
  kPending,    // queued, configuring, requeued
  kHeld,       // queued; will not start unless a user or operator acts
  kRunning,    // includes suspended and completing
  kEnded,      // ended with any result
  kCancelled,  // cancelled by a user or operator
};
std::string_view to_string(JobState state);

// The cause of a job's end, as far as the scheduler knows. The cause classifies failures; only the
// report shows whether the training succeeded.
enum class EndCause {
  kOrdinary,        // its script ended by itself, with any exit status
  kInfrastructure,  // a node failure, a boot failure or preemption: a retry may help
  kWalltime,        // the time limit: another job can continue the checkpoint
  kOutOfMemory,     // another attempt would run out of memory, too
};
std::string_view to_string(EndCause cause);

struct JobStatus {
  JobState state = JobState::kUnknown;
  EndCause cause = EndCause::kOrdinary;  // kEnded only
  std::string native;                    // the scheduler's own name of the state, for messages
  std::string reason;                    // the scheduler's reason for a pending job; may be empty
  bool is_ending = false;                // kRunning only: Slurm's COMPLETING
  // kEnded only: the scheduler could not launch the job and keeps it in the queue until someone
  // releases or cancels it.
  bool stays_queued = false;
  // The times from now, by the facility's clock: to the predicted start of a pending job, and to
  // the time limit of a running job.
  std::optional<std::chrono::seconds> starts_in;
  std::optional<std::chrono::seconds> ends_in;
};

struct SubmittedJob {
  JobId id;
  std::string name;  // the id alone may belong to another user's job by now
  // The submitted job's name, for a job in a kept allocation; empty: `name`.
  std::string first_name{};
  // query() also asks a source that did not answer recently: the caller decides on the answer.
  bool presumed_gone = false;
  auto operator<=>(const SubmittedJob&) const = default;
};

// An allocation that an earlier job of the facility keeps after its report, so that the next
// attempt runs without the queue. The file stay.<state> in that job's folder holds the state
// (docs/operator/kept_allocation.md).
struct KeptAllocation {
  JobId job;          // the job id in the journal
  RemotePath folder;  // the folder of the attempt that the job has reported on
  bool operator==(const KeptAllocation&) const = default;
};

struct JobRequest {
  std::string name;    // plan::job_name()
  std::string script;  // rendered
  RemotePath folder;   // the attempt's folder: working directory, output file, claim
  std::optional<KeptAllocation> kept_allocation{};
  bool may_requeue = true;    // the scheduler may start the job again by itself
  RemotePath nodes_folder{};  // `folder` as compute nodes see it; empty: at the same path

  /// The job's working directory, for the scheduler.
  const RemotePath& directory() const { return nodes_folder.empty() ? folder : nodes_folder; }
};

// A job's output file in its attempt's folder, for every scheduler.
inline constexpr std::string_view kJobOutput = "job.out";

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// Returns the id of a new job, or of the job whose kept allocation submit() took. Throws
  /// kConfig, with the scheduler's message, after a permanent rejection (account, partition,
  /// limits). Throws kBusy after a temporary rejection (a submit limit), when no job exists. Throws
  /// kRemote after an unknown outcome: a job may exist, or submit() may have taken an allocation.
  virtual JobId submit(const JobRequest& request, std::stop_token stop) = 0;
  /// Returns the jobs of this request, oldest first: the job whose kept allocation submit() took,
  /// and the scheduler's jobs of that name and folder (of that name alone where the scheduler does
  /// not show folders). find() does not compare the script. Throws kRemote when the scheduler does
  /// not answer.
  virtual std::vector<JobId> find(const JobRequest& request, std::stop_token stop) = 0;
  /// Releases a kept or planned allocation. No error when the job keeps no allocation or the
  /// coordinator has taken it.
  virtual void release(const KeptAllocation& /*kept*/, std::stop_token /*stop*/) {}
  /// Asks for all jobs at once; every job has an entry in the result. Throws kRemote when the
  /// scheduler does not answer.
  virtual std::map<JobId, JobStatus> query(std::span<const SubmittedJob> jobs,
                                           std::stop_token stop) = 0;
  /// Requests the job's cancellation; no error when it has ended already. Leaves a job of that id
  /// under another name alone: the scheduler has reused the id.
  virtual void cancel(const SubmittedJob& job, std::stop_token stop) = 0;
  /// The time after a lost answer within which a job may still appear under its name.
  virtual std::chrono::milliseconds settle_time() const = 0;
  /// The facility's clock as the answers to query() and find() show it. Absent: not known yet.
  virtual std::optional<ClockOffset> clock_offset() const { return std::nullopt; }
};

/// The scheduler's answer to a test submission: the estimated start, or the reason of a rejection.
struct TestOnly {
  bool accepted = false;
  bool permanent = false;  // the request is wrong, and a retry would not help
  std::string answer;
};

/// Runs jobs as sessions of processes of this machine that outlive the coordinator. A job's id is
/// "<pid>.<start ticks>", so that a reused pid never identifies the job; find() reads the claim
/// that the job wrote in its folder.
std::unique_ptr<Scheduler> make_process_scheduler();
struct QueueManager;  // queue_manager.h
/// The row of this machine's processes.
const QueueManager& process_queue_manager();

}  // namespace xffl::submit
