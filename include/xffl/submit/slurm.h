// Slurm at a facility, driven through a Session: sbatch, squeue, sacct, scancel.
//
// What its answers are worth was measured: docs/operator/slurm.md says how a lost answer, a
// forgotten job and a reused id are told apart from an ended one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/remote/session.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

// What a job asks of Slurm, typed; each field becomes at most one option of sbatch, so no value can
// add a directive.
struct SlurmRequest {
  std::string account, partition, qos, constraint, reservation;  // empty: not given
  int nodes = 1;
  int gpus_per_node = 0;
  std::string gpu_type;                      // empty: any
  std::string gpu_option = "gpus-per-node";  // how the site wants it: "gpus-per-node" or "gres"
  int tasks_per_node = 1;                    // ranks on a node: one per GPU
  int cpus_per_task = 0;                     // 0: the site's default
  uint64_t memory_bytes_per_node = 0;        // 0: the site's default
  bool exclusive = false;
  std::chrono::seconds time{3600};    // walltime
  std::chrono::seconds warning{300};  // SIGUSR1 to the job so long before it
  std::string cluster;                // --clusters; empty: the local one
  std::vector<std::string> extra;     // further "--option" or "--option=value" of sbatch
  bool operator==(const SlurmRequest&) const = default;
};

/// Every option that the job needs, "--nodes=2", in a fixed order: given to sbatch and written into
/// the script, so that a person who submits the script by hand gets the same job. Throws kConfig
/// for a value that Slurm could not have meant (blanks, quotes, line breaks, options in `extra`
/// that xffl sets) and for a folder that cannot stand in a directive.
std::vector<std::string> slurm_options(const SlurmRequest& request, const std::string& job_name,
                                       const RemotePath& folder);

struct SlurmSettings {
  SlurmRequest request;
  std::chrono::milliseconds settle_time{60'000};  // a job may appear so long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};  // of one Slurm command
};

/// submit() throws kBusy when Slurm refused and no job can exist, kConfig when it refused for good,
/// kRemote for any other answer than a bare id. find() and query() count only jobs of this user, of
/// that name; find() only those of that folder. Accounting (sacct) is asked about what squeue does
/// not know, where it exists; its silence says nothing.
std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock);

/// What `sbatch --test-only` says of the script: the estimated start, or why it is refused. Submits
/// nothing.
struct TestOnly {
  bool accepted = false;
  bool for_good = false;  // not accepted, and asking again would not help: the request is wrong
  std::string answer;
};
TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop);

}  // namespace xffl::submit
