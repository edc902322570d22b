// Slurm at a facility, driven through a Session: sbatch, squeue, sacct, scancel.
//
// docs/operator/slurm.md describes how a lost answer, a forgotten job and a reused id differ from
// an ended job, as measured on real controllers.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/clock.h"
#include "xffl/base/enum_names.h"
#include "xffl/remote/session.h"
#include "xffl/submit/accounting.h"
#include "xffl/submit/scheduler.h"

namespace xffl::submit {

using xffl::to_string;

// The site's option of sbatch that requests GPUs.
enum class GpuOption { kGpusPerNode, kGres };
constexpr auto names_of(GpuOption) { return enum_names("gpus-per-node", "gres"); }

// The GPUs of its node that a rank sees. kSite: as the site's srun shows them.
enum class VisibleGpus { kSite, kOne, kAll };
constexpr auto names_of(VisibleGpus) { return enum_names("site", "one", "all"); }

// A facility's Slurm: the `slurm` section of xffl.yaml. Each resource and limit becomes at most one
// option of sbatch, so no value can add a directive.
struct SlurmSettings {
  std::string account, partition, qos, constraint, reservation;  // empty: not set
  std::string check_partition, check_qos;  // of `xffl doctor --job`; empty: those of the jobs
  std::string cpu_partition, cpu_qos;      // for work without GPUs; empty: there is no such queue
  int nodes = 1;
  int gpus_per_node = 0;
  std::string gpu_type;  // empty: any
  GpuOption gpu_option = GpuOption::kGpusPerNode;
  VisibleGpus visible_gpus = VisibleGpus::kSite;
  int tasks_per_node = 1;       // ranks on a node: one per GPU
  int cpus_per_task = 0;        // 0: the site's default
  int64_t memory_per_node = 0;  // bytes; 0: the site's default
  bool exclusive = false;
  std::chrono::seconds time{3600};    // walltime
  std::chrono::seconds warning{300};  // before the walltime: SIGUSR1 to the job
  std::string cluster;                // --clusters; empty: the local cluster
  std::vector<std::string> extra;     // further "--option" or "--option=value" of sbatch
  std::vector<std::string> srun;      // further options of srun, in the job script
  std::chrono::milliseconds settle_time{60'000};  // a job may appear this long after a lost answer
  std::chrono::milliseconds command_timeout{60'000};  // of one Slurm command
  std::chrono::seconds keep_allocation{
      0};  // of a job that has reported, for the next round; 0: none
  bool operator==(const SlurmSettings&) const = default;
};

/// The reason why a user may not add `option` to a job, as the end of a sentence; empty for a valid
/// option. An option is "--word" or "--word=value" without blanks, quotes or characters of a shell,
/// so that the option is one word of a directive. Options that xffl sets or that have a key of
/// their own are invalid.
std::string validate_sbatch_option(std::string_view option);
std::string validate_srun_option(std::string_view option);

/// Returns every option of the job, such as "--nodes=2", in a fixed order. sbatch receives the
/// options and the script contains the same options, so that a script submitted by hand is the same
/// job. With `may_requeue` Slurm starts the job again after a node's failure or a preemption.
/// Throws kConfig for a value that no directive can hold (blanks, quotes, line breaks), for
/// options in `extra` that xffl sets, and for a folder that cannot stand in a directive.
std::vector<std::string> slurm_options(const SlurmSettings& settings, const std::string& job_name,
                                       const RemotePath& folder, bool may_requeue = true);

/// submit() throws kBusy for a temporary rejection without a job, kConfig for a permanent
/// rejection, and kRemote for any other answer than a bare id. find() and query() count only this
/// user's jobs of that name; find() counts only jobs of that folder. The scheduler asks accounting
/// (sacct), where accounting exists, about jobs that squeue does not know; a job absent from sacct
/// stays unknown.
std::shared_ptr<Scheduler> make_slurm_scheduler(SlurmSettings settings,
                                                std::shared_ptr<remote::Session> session,
                                                Clock& clock);

/// The answer of `sbatch --test-only`.
TestOnly test_only(remote::Session& session, const SlurmSettings& settings,
                   const JobRequest& request, std::stop_token stop);

/// Every start of the jobs in the accounting, by job and time: sacct --duplicates. Jobs of another
/// name are left out. Throws kNotFound without an accounting, kRemote when sacct does not answer.
std::vector<AccountedStart> accounted_starts(remote::Session& session,
                                             const SlurmSettings& settings,
                                             std::span<const SubmittedJob> jobs,
                                             std::stop_token stop);

/// The longest walltime that the request's partition allows, by sinfo; empty when the partition has
/// no limit or sinfo does not answer.
std::optional<std::chrono::seconds> longest_walltime(remote::Session& session,
                                                     const SlurmSettings& settings);

struct QueueManager;  // queue_manager.h
/// Slurm's row.
const QueueManager& slurm_queue_manager();

}  // namespace xffl::submit
