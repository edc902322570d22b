// Slurm at a facility, driven through a Session: sbatch, squeue, sacct, scancel.
//
// docs/operator/slurm.md describes how a lost answer, a forgotten job and a reused id differ from
// an ended job, as measured on real controllers.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// A job's resources and limits. Each field becomes at most one option of sbatch, so no value can
// add a directive.
struct SlurmRequest {
  std::string account, partition, qos, constraint, reservation;  // empty: not set
  int nodes = 1;
  int gpus_per_node = 0;
  std::string gpu_type;                      // empty: any
  std::string gpu_option = "gpus-per-node";  // the site's option: "gpus-per-node" or "gres"
  int tasks_per_node = 1;                    // ranks on a node: one per GPU
  int cpus_per_task = 0;                     // 0: the site's default
  uint64_t memory_bytes_per_node = 0;        // 0: the site's default
  bool exclusive = false;
  std::chrono::seconds time{3600};    // walltime
  std::chrono::seconds warning{300};  // before the walltime: SIGUSR1 to the job
  std::string cluster;                // --clusters; empty: the local one
  std::vector<std::string> extra;     // further "--option" or "--option=value" of sbatch
  bool operator==(const SlurmRequest&) const = default;
};

/// Returns every option of the job, such as "--nodes=2", in a fixed order. sbatch receives them and
/// the script contains them, so that a script submitted by hand is the same job. Throws kConfig for
/// a value that no directive can hold (blanks, quotes, line breaks), for options in `extra` that
/// xffl sets, and for a folder that cannot stand in a directive.
std::vector<std::string> slurm_options(const SlurmRequest& request, const std::string& job_name,
                                       const RemotePath& folder);

struct SlurmSettings {
  SlurmRequest request;
  std::chrono::milliseconds settle_time{60'000};  // a job may appear this long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};  // of one Slurm command
};

/// submit() throws kBusy for a temporary rejection without a job, kConfig for a permanent
/// rejection, and kRemote for any other answer than a bare id. find() and query() count only this
/// user's jobs of that name; find() only those of that folder. Accounting (sacct), where it exists,
/// is asked about jobs that squeue does not know; a job absent from sacct stays unknown.
std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock);

/// The answer of `sbatch --test-only`.
TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop);

/// The longest walltime that the request's partition allows, by sinfo; empty when it has no limit
/// or does not answer.
std::optional<std::chrono::seconds> longest_walltime(remote::Session& session,
                                                     const SlurmSettings& settings);

}  // namespace xffl::submit
