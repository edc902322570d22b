// A facility's batch system. One of the four interfaces to the world.
//
// Unknown is never "finished": a job that a scheduler does not mention is kUnknown, and only the
// report in the job's folder says that a training succeeded. A submission whose answer was lost
// throws kRemote: the caller looks for the job by its name, after a settle time, before it submits
// again; the job's own claim (docs/operator/slurm.md) makes a second start harmless. Thread-safe.
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

#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::submit {

enum class JobState {
  kUnknown,    // not mentioned, or in a word that this version does not know
  kPending,    // queued, configuring, requeued
  kHeld,       // queued, and will not start unless a person does something
  kRunning,    // includes suspended and completing
  kEnded,      // over, whatever the result
  kCancelled,  // ended by a person
};
std::string_view to_string(JobState state);

// Why a job is over, as far as its scheduler knows. It classifies a failure; whether a training
// succeeded is said by its report alone.
enum class EndCause {
  kOrdinary,        // its script ended by itself, in whatever way
  kInfrastructure,  // a node failed, did not boot, or the job was pre-empted: another try may help
  kWalltime,        // the time limit: the job's own checkpoint can be continued
  kOutOfMemory,     // the same job would end the same way
};
std::string_view to_string(EndCause cause);

struct JobStatus {
  JobState state = JobState::kUnknown;
  EndCause cause = EndCause::kOrdinary;  // of kEnded
  std::string native;                    // the scheduler's own word, for people
  std::string reason;                    // why it waits, in the scheduler's words; may be empty
  bool is_ending = false;                // of kRunning: its end is decided, its nodes are cleared
  // From now, by the facility's own clock: to the predicted start of a pending job, to the time
  // limit of a running one.
  std::optional<std::chrono::seconds> starts_in;
  std::optional<std::chrono::seconds> ends_in;
};

struct SubmittedJob {
  JobId id;
  std::string name;  // an id alone may have been given to a stranger's job meanwhile
  // The name that it was submitted under, when it stayed for this attempt (Offer); empty: `name`.
  std::string first_name{};
  auto operator<=>(const SubmittedJob&) const = default;
};

// What an earlier job of the facility may offer: to take this attempt in the allocation that it
// has, without the queue. Its word is the name of one file in its attempt's folder, stay.<state>,
// that each side changes by one rename (docs/operator/kept_allocation.md).
struct Offer {
  JobId job;          // by the journal
  RemotePath folder;  // of the attempt that it has reported on
  bool operator==(const Offer&) const = default;
};

struct JobRequest {
  std::string name;    // JobKey::job_name()
  std::string script;  // rendered
  RemotePath folder;   // the attempt's folder: working directory, output file, claim
  std::optional<Offer> offer{};
};

// A job's output, in its attempt's folder, whatever the scheduler.
inline constexpr std::string_view kJobOutput = "job.out";

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// The id of a new job, or of the one that offers itself and is taken. Throws kConfig when the
  /// request itself is refused for good (account, partition, limits: with the scheduler's own
  /// text), kBusy when it is refused for now and no job exists (a submit limit), kRemote when it is
  /// in doubt whether the job exists, or whether it was taken.
  virtual JobId submit(const JobRequest& request, std::stop_token stop) = 0;
  /// The jobs of such a submission, oldest first: the one that was taken, and those of that name
  /// and folder that the scheduler knows; the script does not matter. Throws kRemote when it cannot
  /// say.
  virtual std::vector<JobId> find(const JobRequest& request, std::stop_token stop) = 0;
  /// Lets a job go that offers itself or will; no error when there is none, or it was taken.
  virtual void decline(const Offer& /*offer*/, std::stop_token /*stop*/) {}
  /// One query for all; every job has an entry. Throws kRemote when the scheduler did not answer.
  virtual std::map<JobId, JobStatus> query(std::span<const SubmittedJob> jobs,
                                           std::stop_token stop) = 0;
  /// Asks for the job's end; no error when it is over already. A job of that id under another name
  /// is not touched: the id was given away.
  virtual void cancel(const SubmittedJob& job, std::stop_token stop) = 0;
  /// How long after a lost answer a job may still appear under its name.
  virtual std::chrono::milliseconds settle_time() const = 0;
};

/// Jobs as process groups of this machine that outlive the coordinator. A job's id is "<pid>.<start
/// ticks>", so a reused pid is not mistaken for it; find() reads the claim that the job wrote in
/// its folder.
std::unique_ptr<Scheduler> make_process_scheduler();

}  // namespace xffl::submit
