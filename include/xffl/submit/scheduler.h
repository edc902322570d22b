// A facility's batch system. One of the four interfaces to the world.
//
// Unknown is never "finished": a job that a scheduler does not mention is kUnknown, and only the
// report in the job's folder says that a training succeeded. A submission whose answer was lost
// throws kRemote: the caller looks for the job by its name, after a settle time, before it submits
// again; the job's own claim (docs/formats.md) makes a second start harmless. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"

namespace xffl::submit {

enum class JobState {
  kUnknown,    // not mentioned, or the scheduler did not answer
  kPending,    // queued, held, configuring
  kRunning,    // includes completing
  kEnded,      // over, whatever the result
  kCancelled,  // ended by a person
};
std::string_view to_string(JobState state);

struct JobStatus {
  JobState state = JobState::kUnknown;
  std::string native;  // the scheduler's own word, for people
};

struct JobRequest {
  std::string name;    // JobKey::job_name()
  std::string script;  // rendered
  RemotePath folder;   // the attempt's folder: working directory, output file, claim
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// Throws kConfig when the request itself is refused, kRemote when it is in doubt whether the job
  /// exists.
  virtual JobId submit(const JobRequest& request, std::stop_token stop) = 0;
  /// Jobs of that name that the scheduler knows, oldest first; `folder` is the attempt's. Throws
  /// kRemote when it cannot say.
  virtual std::vector<JobId> find(const std::string& name, const RemotePath& folder,
                                  std::stop_token stop) = 0;
  /// One query for all; every id has an entry. Throws kRemote when the scheduler did not answer.
  virtual std::map<JobId, JobStatus> query(std::span<const JobId> ids, std::stop_token stop) = 0;
  /// Asks for the job's end; no error when it is over already.
  virtual void cancel(const JobId& id, std::stop_token stop) = 0;
  /// How long after a lost answer a job may still appear under its name.
  virtual std::chrono::milliseconds settle_time() const = 0;
};

/// Jobs as process groups of this machine that outlive the coordinator. A job's id is "<pid>.<start
/// ticks>", so a reused pid is not mistaken for it; find() reads the claim that the job wrote in
/// its folder.
std::unique_ptr<Scheduler> make_process_scheduler();

}  // namespace xffl::submit
